# Finds LibTorch in a `torch` package of pip or an unpacked libtorch archive. Defines LibTorch::torch.
#
# Looked for in TROUPE_TORCH (cache or environment: the folder that holds share/cmake/Torch), in the virtual
# environment that apps/setup.sh makes, where troupe-torch of the Debian package puts it, and along CMAKE_PREFIX_PATH.
# LibTorch's own package file is not used: it asks for a CUDA toolkit where the library was built with one, warns about
# parts that no target links, and is slow.
if(NOT TROUPE_TORCH AND DEFINED ENV{TROUPE_TORCH})
  set(TROUPE_TORCH $ENV{TROUPE_TORCH})
endif()
set(TROUPE_TORCH "${TROUPE_TORCH}" CACHE PATH "LibTorch: the folder that holds share/cmake/Torch")

set(_torch_marker share/cmake/Torch/TorchConfig.cmake)
if(TROUPE_TORCH)
  set(_torch_places ${TROUPE_TORCH})
else()
  file(GLOB _torch_places ${PROJECT_SOURCE_DIR}/build/venv/lib/python3*/site-packages/torch)
  list(APPEND _torch_places /usr/local/lib/troupe/torch)
  foreach(_prefix IN LISTS CMAKE_PREFIX_PATH)
    list(APPEND _torch_places ${_prefix} ${_prefix}/../..)
  endforeach()
endif()
if(NOT EXISTS "${LibTorch_ROOT_DIR}/${_torch_marker}" OR (TROUPE_TORCH AND NOT LibTorch_ROOT_DIR STREQUAL TROUPE_TORCH))
  unset(LibTorch_ROOT_DIR CACHE)
  unset(LibTorch_LIBRARY CACHE)
  foreach(_place IN LISTS _torch_places)
    if(EXISTS ${_place}/${_torch_marker})
      get_filename_component(_place ${_place} REALPATH)
      set(LibTorch_ROOT_DIR ${_place} CACHE PATH "LibTorch's folder")
      break()
    endif()
  endforeach()
endif()
find_library(LibTorch_LIBRARY torch PATHS ${LibTorch_ROOT_DIR}/lib NO_DEFAULT_PATH)

foreach(_header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(NOT LibTorch_VERSION AND EXISTS ${LibTorch_ROOT_DIR}/include/${_header})
    file(STRINGS ${LibTorch_ROOT_DIR}/include/${_header} _numbers REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX REPLACE "[^0-9;]" "" _numbers "${_numbers}")
    string(REPLACE ";" "." LibTorch_VERSION "${_numbers}")
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_LIBRARY LibTorch_ROOT_DIR VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "\
Fix: `bash apps/setup.sh` puts it under build/venv. Or pass -DTROUPE_TORCH=DIR, the torch folder of a Python \
environment with torch 2.13 in it. Or build without it: -DTROUPE_WITH_TORCH=OFF")

if(LibTorch_FOUND AND NOT TARGET LibTorch::torch)
  add_library(LibTorch::torch INTERFACE IMPORTED)
  target_include_directories(LibTorch::torch SYSTEM INTERFACE
    ${LibTorch_ROOT_DIR}/include ${LibTorch_ROOT_DIR}/include/torch/csrc/api/include)
  # As the library was built: some of its classes have members only with these.
  target_compile_definitions(LibTorch::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
  # Operators register themselves when their library loads, so each is linked even where no symbol of it is used.
  foreach(_part c10 torch_cpu c10_cuda torch_cuda torch)
    if(EXISTS ${LibTorch_ROOT_DIR}/lib/lib${_part}.so)
      add_library(LibTorch::${_part}_so SHARED IMPORTED)
      set_target_properties(LibTorch::${_part}_so PROPERTIES
        IMPORTED_LOCATION ${LibTorch_ROOT_DIR}/lib/lib${_part}.so IMPORTED_NO_SONAME TRUE)
      # One word for each part: CMake leaves out a flag that stood before, and the linker then left out libtorch_cuda.
      target_link_libraries(LibTorch::torch INTERFACE
        -Wl,--push-state,--no-as-needed,$<TARGET_FILE:LibTorch::${_part}_so>,--pop-state LibTorch::${_part}_so)
    endif()
  endforeach()
endif()
