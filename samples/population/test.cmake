# Runs the experiment from the beginning and looks at its last line: nine sync points, and all members done.
file(REMOVE_RECURSE ${OUT})
execute_process(COMMAND ${TROUPE} run ${CMAKE_CURRENT_LIST_DIR}/experiment.json --slots 2 --device cpu --out ${OUT} --json
                OUTPUT_VARIABLE lines RESULT_VARIABLE status)
string(REGEX MATCH "[^\n]*\n$" last "${lines}")
string(JSON outcome GET "${last}" outcome)
string(JSON rounds GET "${last}" sync_points)
if(NOT status EQUAL 0 OR NOT outcome STREQUAL "done" OR NOT rounds EQUAL 9)
  message(FATAL_ERROR "exit status ${status}, last line: ${last}")
endif()
if(PYTHON)
  execute_process(COMMAND ${PYTHON} ${CMAKE_CURRENT_LIST_DIR}/lineage.py ${OUT} COMMAND_ERROR_IS_FATAL ANY)
endif()
