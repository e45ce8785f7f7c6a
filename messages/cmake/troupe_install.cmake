# `cmake --install BUILD --prefix DIR`: libraries, headers as <troupe/session.hpp>, and the package that
# find_package(Troupe) finds. Below troupe/detail lies what they need and nobody includes by name.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(TROUPE_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/Troupe)
set(public messages backends actors)
set(internal messages backends actors)
set(without PATTERN include EXCLUDE)
if(TROUPE_WITH_TORCH)
  list(APPEND public backends/torch)
else()
  list(APPEND without PATTERN torch EXCLUDE)
endif()
if(TROUPE_BUILD_APPS)
  list(APPEND public apps/testing)
  list(APPEND internal apps/testing)
endif()
foreach(folder IN LISTS public)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    COMPONENT development FILES_MATCHING PATTERN *.hpp)
endforeach()
foreach(folder IN LISTS internal)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/troupe/detail/${folder}
    COMPONENT development FILES_MATCHING PATTERN *.hpp PATTERN cmake EXCLUDE ${without})
endforeach()
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
