#pragma once

/// Macros over lists of up to 24 arguments: TROUPE_PP_LIST(M, t, a, b) is M(t, a), M(t, b); TROUPE_PP_EACH the same without
/// commas.

#define TROUPE_PP_CAT_(a, b) a##b
#define TROUPE_PP_CAT(a, b) TROUPE_PP_CAT_(a, b)
#define TROUPE_PP_COUNT_(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, \
                         _13, _14, _15, _16, _17, _18, _19, _20, _21, _22, _23, _24, N, ...) N
#define TROUPE_PP_COUNT(...) \
  TROUPE_PP_COUNT_(__VA_ARGS__, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)

#define TROUPE_PP_LIST_1(M, t, a) M(t, a)
#define TROUPE_PP_LIST_2(M, t, a, ...) M(t, a), TROUPE_PP_LIST_1(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_3(M, t, a, ...) M(t, a), TROUPE_PP_LIST_2(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_4(M, t, a, ...) M(t, a), TROUPE_PP_LIST_3(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_5(M, t, a, ...) M(t, a), TROUPE_PP_LIST_4(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_6(M, t, a, ...) M(t, a), TROUPE_PP_LIST_5(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_7(M, t, a, ...) M(t, a), TROUPE_PP_LIST_6(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_8(M, t, a, ...) M(t, a), TROUPE_PP_LIST_7(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_9(M, t, a, ...) M(t, a), TROUPE_PP_LIST_8(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_10(M, t, a, ...) M(t, a), TROUPE_PP_LIST_9(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_11(M, t, a, ...) M(t, a), TROUPE_PP_LIST_10(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_12(M, t, a, ...) M(t, a), TROUPE_PP_LIST_11(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_13(M, t, a, ...) M(t, a), TROUPE_PP_LIST_12(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_14(M, t, a, ...) M(t, a), TROUPE_PP_LIST_13(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_15(M, t, a, ...) M(t, a), TROUPE_PP_LIST_14(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_16(M, t, a, ...) M(t, a), TROUPE_PP_LIST_15(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_17(M, t, a, ...) M(t, a), TROUPE_PP_LIST_16(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_18(M, t, a, ...) M(t, a), TROUPE_PP_LIST_17(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_19(M, t, a, ...) M(t, a), TROUPE_PP_LIST_18(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_20(M, t, a, ...) M(t, a), TROUPE_PP_LIST_19(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_21(M, t, a, ...) M(t, a), TROUPE_PP_LIST_20(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_22(M, t, a, ...) M(t, a), TROUPE_PP_LIST_21(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_23(M, t, a, ...) M(t, a), TROUPE_PP_LIST_22(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST_24(M, t, a, ...) M(t, a), TROUPE_PP_LIST_23(M, t, __VA_ARGS__)
#define TROUPE_PP_LIST(M, t, ...) \
  TROUPE_PP_CAT(TROUPE_PP_LIST_, TROUPE_PP_COUNT(__VA_ARGS__))(M, t, __VA_ARGS__)

#define TROUPE_PP_EACH_1(M, t, a) M(t, a)
#define TROUPE_PP_EACH_2(M, t, a, ...) M(t, a) TROUPE_PP_EACH_1(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_3(M, t, a, ...) M(t, a) TROUPE_PP_EACH_2(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_4(M, t, a, ...) M(t, a) TROUPE_PP_EACH_3(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_5(M, t, a, ...) M(t, a) TROUPE_PP_EACH_4(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_6(M, t, a, ...) M(t, a) TROUPE_PP_EACH_5(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_7(M, t, a, ...) M(t, a) TROUPE_PP_EACH_6(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_8(M, t, a, ...) M(t, a) TROUPE_PP_EACH_7(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_9(M, t, a, ...) M(t, a) TROUPE_PP_EACH_8(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_10(M, t, a, ...) M(t, a) TROUPE_PP_EACH_9(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_11(M, t, a, ...) M(t, a) TROUPE_PP_EACH_10(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_12(M, t, a, ...) M(t, a) TROUPE_PP_EACH_11(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_13(M, t, a, ...) M(t, a) TROUPE_PP_EACH_12(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_14(M, t, a, ...) M(t, a) TROUPE_PP_EACH_13(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_15(M, t, a, ...) M(t, a) TROUPE_PP_EACH_14(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_16(M, t, a, ...) M(t, a) TROUPE_PP_EACH_15(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_17(M, t, a, ...) M(t, a) TROUPE_PP_EACH_16(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_18(M, t, a, ...) M(t, a) TROUPE_PP_EACH_17(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_19(M, t, a, ...) M(t, a) TROUPE_PP_EACH_18(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_20(M, t, a, ...) M(t, a) TROUPE_PP_EACH_19(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_21(M, t, a, ...) M(t, a) TROUPE_PP_EACH_20(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_22(M, t, a, ...) M(t, a) TROUPE_PP_EACH_21(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_23(M, t, a, ...) M(t, a) TROUPE_PP_EACH_22(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH_24(M, t, a, ...) M(t, a) TROUPE_PP_EACH_23(M, t, __VA_ARGS__)
#define TROUPE_PP_EACH(M, t, ...) \
  TROUPE_PP_CAT(TROUPE_PP_EACH_, TROUPE_PP_COUNT(__VA_ARGS__))(M, t, __VA_ARGS__)
