# `cmake --install BUILD --prefix DIR`: libraries, headers as <troupe/actors/session.hpp>, and the package that
# find_package(Troupe) finds. Headers include one another from the root, so that is in the path of who links them, too.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(TROUPE_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/Troupe)
foreach(folder messages backends actors)
  set(without)
  if(NOT TROUPE_WITH_TORCH AND folder STREQUAL backends)
    set(without PATTERN torch EXCLUDE)
  endif()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/troupe
    COMPONENT development FILES_MATCHING PATTERN *.hpp PATTERN cmake EXCLUDE ${without})
endforeach()
# The simulated world is <troupe/testing/...> for users, "apps/testing/..." for itself.
if(TROUPE_BUILD_APPS)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/apps/testing DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/troupe/apps
    COMPONENT development FILES_MATCHING PATTERN *.hpp)
  install(CODE "file(CREATE_LINK apps/testing
    \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/troupe/testing\" SYMBOLIC)"
    COMPONENT development)
endif()
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
