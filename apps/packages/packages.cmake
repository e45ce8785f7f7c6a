# Debian packages by CPack, for the component installs of the project: `bash apps/packages/build.sh`.
#
#   libtroupe      the libraries, which are static
#   libtroupe-dev  headers, the CMake package
#   troupe         the programs, manual pages, completions, the service's unit, troupe-torch
#
# LibTorch is no Debian package. The programs look for it in /usr/local/lib/troupe/torch, and so does the CMake package.
# troupe-torch makes that a link to a folder that is there, or installs LibTorch from PyPI.
set(root ${CMAKE_CURRENT_LIST_DIR})
set(TROUPE_TORCH_LINK /usr/local/lib/troupe/torch)
set_target_properties(troupe troupe_service PROPERTIES INSTALL_RPATH ${TROUPE_TORCH_LINK}/lib)
set(made ${PROJECT_BINARY_DIR}/packages.in)
configure_file(${root}/troupe-torch.in ${made}/troupe-torch @ONLY)
configure_file(${root}/postinst.in ${made}/postinst @ONLY FILE_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
install(PROGRAMS ${made}/troupe-torch DESTINATION ${CMAKE_INSTALL_SBINDIR} COMPONENT program)
install(FILES ${root}/troupe.service DESTINATION lib/systemd/system COMPONENT program)
install(FILES ${PROJECT_SOURCE_DIR}/docs/changelog.md DESTINATION share/doc/libtroupe COMPONENT library)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "maintainers of Troupe <troupe@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL library development program)
# The libraries are installed with the headers; this moves them into a package of their own.
set(CPACK_PRE_BUILD_SCRIPTS ${root}/split.cmake)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)

set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "distributed LibTorch training on actors: static libraries")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libtroupe)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)

# What the CMake package looks for.
set(needs libcaf-dev "libboost1.81-dev | libboost-dev (>= 1.81)" libfmt-dev nlohmann-json3-dev libxxhash-dev zlib1g-dev)
if(OpenSSL_FOUND)
  list(APPEND needs libssl-dev)
endif()
get_property(found GLOBAL PROPERTY TROUPE_BUILT_WITH_MPI)
if(found)
  list(APPEND needs libopenmpi-dev)
endif()
list(JOIN needs ", " needs)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "distributed LibTorch training on actors: headers and CMake package")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libtroupe-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libtroupe (= ${PROJECT_VERSION}), ${needs}")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "troupe, cmake, g++")

set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "distributed LibTorch training on actors: programs")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME troupe)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)  # LibTorch's libraries are in no package, and are left out
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "python3-venv")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS "dataset-fashion-mnist, openmpi-bin, bash-completion")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_CONTROL_EXTRA ${root}/prerm ${made}/postinst ${root}/postrm)
include(CPack)
