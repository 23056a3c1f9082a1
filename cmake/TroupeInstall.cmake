include(CMakePackageConfigHelpers)
set(_cmakedir ${CMAKE_INSTALL_LIBDIR}/cmake/Troupe)
install(EXPORT TroupeTargets NAMESPACE troupe:: DESTINATION ${_cmakedir})
configure_package_config_file(cmake/TroupeConfig.cmake.in TroupeConfig.cmake INSTALL_DESTINATION ${_cmakedir})
write_basic_package_version_file(TroupeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TroupeConfig.cmake ${PROJECT_BINARY_DIR}/TroupeConfigVersion.cmake
              cmake/FindCAF.cmake DESTINATION ${_cmakedir})
