# Runs small searches: with a draw that libsvm refuses, with both kinds of kernel, and on the digits, where the scores must be
# those that scikit-learn 1.2.1 has (bench/peers/svm_joblib.py).
set(lists ${CMAKE_CURRENT_LIST_DIR})
set(digits /usr/lib/python3/dist-packages/sklearn/datasets/data/digits.csv.gz)

function(search expected)
  execute_process(COMMAND ${SVM_SEARCH} --slots 2 --json ${ARGN} OUTPUT_VARIABLE found ERROR_VARIABLE errors RESULT_VARIABLE status)
  if(NOT status EQUAL expected)
    message(FATAL_ERROR "svm_search ${ARGN}: exit status ${status} instead of ${expected}: ${errors}${found}")
  endif()
  set(found "${found}" PARENT_SCOPE)
  set(errors "${errors}" PARENT_SCOPE)
endfunction()

# A draw that fails is reported, and the others are not touched by it.
file(WRITE ${OUT}/refused.json [=[[{"C": 1, "gamma": 0.001, "tol": 0.001, "class_weight": "balanced"},
                                   {"C": -1, "gamma": 0.001, "tol": 0.001},
                                   {"C": 1e-4, "gamma": 0.001, "tol": 0.001}]]=])
foreach(kernel shared own)
  search(1 --generated --draws-file ${OUT}/refused.json --kernel ${kernel})
  string(JSON failed GET "${found}" failed)
  string(JSON failure GET "${found}" results 1 failure)
  string(JSON best GET "${found}" best draw)
  string(JSON ${kernel}_results GET "${found}" results)
  if(NOT failed EQUAL 1 OR NOT failure MATCHES "C <= 0" OR NOT best EQUAL 0)
    message(FATAL_ERROR "a draw that libsvm refuses: ${found}")
  endif()
endforeach()
if(NOT shared_results STREQUAL own_results)
  message(FATAL_ERROR "a shared kernel gives ${shared_results}, libsvm's own ${own_results}")
endif()

# What is wrong with a file is said with its place.
file(WRITE ${OUT}/wrong.json [=[[{"C": 1, "gamma": "much", "tol": 0.001}]]=])
search(1 --generated --draws-file ${OUT}/wrong.json)
if(NOT errors MATCHES "wrong.json: /0/gamma must be a number")
  message(FATAL_ERROR "a wrong draw: ${errors}")
endif()

# Stopped when the first draw is over, it shows what it has. The file of a run before would say so too soon.
file(REMOVE ${OUT}/stopped.txt)
execute_process(COMMAND sh -c "$0 --slots 2 --generated --draws 100000 > $1 & pid=$!
                               until [ -s $1 ]; do kill -0 $pid && sleep 0.05 || exit 1; done
                               kill $pid; wait $pid" ${SVM_SEARCH} ${OUT}/stopped.txt
                ERROR_VARIABLE errors RESULT_VARIABLE status)
file(READ ${OUT}/stopped.txt found)
if(NOT status EQUAL 130 OR NOT found MATCHES "of 100000 draws, 5 folds each, on 2 slots.*best: ")
  message(FATAL_ERROR "stopped: exit status ${status}: ${errors}${found}")
endif()

if(NOT EXISTS ${digits})
  search(1 --draws-file ${lists}/draws.json)
  if(NOT errors MATCHES "python3-sklearn")
    message(FATAL_ERROR "without the digits: ${errors}")
  endif()
  message("Not compared with scikit-learn: Debian's python3-sklearn, which has the digits, is not installed")
  return()
endif()
search(0 --draws-file ${lists}/draws.json)
set(scikit_learn "[0.9488099659548128, 0.23766326214794184, 0.9716279789538842]")
foreach(i 0 1 2)
  string(JSON score GET "${found}" results ${i} score)
  string(JSON expected GET "${scikit_learn}" ${i})
  if(NOT score STREQUAL expected)
    message(FATAL_ERROR "draw ${i}: ${score} instead of ${expected}")
  endif()
endforeach()
