# `cmake --install BUILD --prefix DIR`: libraries, headers as <troupe/session.hpp>, and the package that
# find_package(Troupe) finds. The target `development` builds what this needs: no program and no test.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(TROUPE_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/Troupe)
set(_public messages backends actors)
if(TROUPE_WITH_TORCH)
  list(APPEND _public backends/torch)
endif()
if(TROUPE_BUILD_APPS)
  list(APPEND _public apps/testing)
  if(TROUPE_WITH_TORCH)
    list(APPEND _public apps/troupe)
  endif()
  find_package(OpenSSL QUIET)  # that of apps/http
endif()
foreach(_folder IN LISTS _public)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${_folder}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    COMPONENT development FILES_MATCHING PATTERN *.hpp)
endforeach()
# Of the internal headers, below troupe/detail, those that the simulator's public headers reach.
if(TROUPE_BUILD_APPS)
  install(CODE "set(source ${PROJECT_SOURCE_DIR})
    set(destination \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/troupe/detail\")
    include(${PROJECT_SOURCE_DIR}/messages/cmake/install_reached.cmake)" COMPONENT development)
endif()
get_property(_installed GLOBAL PROPERTY TROUPE_INSTALLED)
add_custom_target(development DEPENDS ${_installed})
install(EXPORT troupe_targets NAMESPACE troupe:: FILE TroupeTargets.cmake
  DESTINATION ${TROUPE_PACKAGE_DIR} COMPONENT development)
configure_package_config_file(${PROJECT_SOURCE_DIR}/messages/cmake/TroupeConfig.cmake.in
  ${PROJECT_BINARY_DIR}/package/TroupeConfig.cmake INSTALL_DESTINATION ${TROUPE_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/TroupeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/package/TroupeConfig.cmake
  ${PROJECT_BINARY_DIR}/package/TroupeConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/messages/cmake/FindCAF.cmake
  ${PROJECT_SOURCE_DIR}/messages/cmake/FindLibTorch.cmake
  DESTINATION ${TROUPE_PACKAGE_DIR} COMPONENT development)
