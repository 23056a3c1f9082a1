include(GNUInstallDirs)

# troupe_module(core SOURCES ... [PUBLIC libs] [PRIVATE libs])
# A static library troupe_<name> with the alias troupe::<name>. Its include/ is public; src/ is on nobody
# else's path, so an include that the layers forbid does not compile.
function(troupe_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  set(target troupe_${name})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(troupe::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(${target}
    PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE} $<BUILD_INTERFACE:troupe_warnings>)
  install(TARGETS ${target} EXPORT TroupeTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endfunction()

# troupe_portable(target): in the build tree, a program finds libraries in the folder lib beside its own before the system's, and so
# do those libraries: script/gpu-check packs it with them. An rpath of the old kind, since one of the new kind does not hold for what
# libraries need.
function(troupe_portable target)
  set_target_properties(${target} PROPERTIES BUILD_RPATH "$ORIGIN/../lib")
  target_link_options(${target} PRIVATE LINKER:--disable-new-dtags)
endfunction()

# troupe_test(core SOURCES a_test.cpp ... LIBS troupe::core [TIMEOUT s] [LABELS ...])
# One doctest binary test_<name>, one CTest test per doctest test case.
function(troupe_test name)
  cmake_parse_arguments(ARG "SERIAL" "TIMEOUT" "SOURCES;LIBS;LABELS;DEFS" ${ARGN})
  set(target test_${name})
  add_executable(${target} ${ARG_SOURCES} ${PROJECT_SOURCE_DIR}/test/main.cpp)
  target_link_libraries(${target} PRIVATE ${ARG_LIBS} doctest::doctest troupe_warnings)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/test)
  target_compile_definitions(${target} PRIVATE ${ARG_DEFS})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set(props TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  if(ARG_SERIAL)
    list(APPEND props RUN_SERIAL TRUE)
  endif()
  doctest_discover_tests(${target} TEST_PREFIX "${name}: " PROPERTIES ${props})
endfunction()
