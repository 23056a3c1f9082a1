"""Nsight Compute's tables, as its versions write them."""
import unittest

from stand_ins import STEP, main, ncu_table

from gpu_check.kernels import durations, step_of
from gpu_check.steps import Wrong


class Kernels(unittest.TestCase):
    def test_a_line_for_each_metric(self):
        found = durations(ncu_table(STEP, 1))
        self.assertEqual([round(us, 3) for *_, us in found], [1.5, 26.0, 65.5])
        self.assertEqual(found[0][1:3], ("(4, 1, 64)", "(256, 1, 1)"))

    def test_a_column_for_each_metric(self):
        text = '==PROF== Connected\n"ID","Kernel Name","Block Size","gpu__time_duration.sum"\n"","","","nsecond"\n' \
               '"0","void a<int>(float, int)","(1, 1, 1)","2,000"\n"1","b","(1, 1, 1)","500"\n'
        self.assertEqual(durations(text), [("void a<int>(float, int)", "", "(1, 1, 1)", 2.0), ("b", "", "(1, 1, 1)", 0.5)])

    def test_the_last_whole_step_is_taken(self):
        draws = [("void troupe::x::random_map_kernel<troupe::x::draw_uniform_op>(long)", "ns", "9")] * 5
        found = step_of(ncu_table(draws + STEP * 3, 1))
        self.assertEqual([x["us"] for x in found["kernels"]], [1.5, 26.0, 65.5])

    def test_what_is_no_table_or_has_no_step_or_no_number_is_said(self):
        for text, why in (("", "no table"), ("==ERROR== The user does not have permission", "no table"),
                          (ncu_table(STEP, 1), "1 begin a step"), (ncu_table([("k", "ns", "n/a")], 3), "no duration of k: 'n/a' 'ns'"),
                          (ncu_table([("k", "furlong", "1")], 3), "'1' 'furlong'")):
            with self.assertRaisesRegex(Wrong, why):
                step_of(text)


if __name__ == "__main__":
    main()
