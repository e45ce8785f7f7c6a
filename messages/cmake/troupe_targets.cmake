# One place for language level, warnings, prefix maps, sanitizers and the include root.
add_library(troupe_settings INTERFACE)
target_compile_features(troupe_settings INTERFACE cxx_std_20)
target_compile_options(troupe_settings INTERFACE
  -Wall -Wextra -Wpedantic -Wno-missing-field-initializers
  $<$<BOOL:${TROUPE_WERROR}>:-Werror>
  -pipe  # an assembler's input of some hundred megabytes may be more than /tmp holds
  -fno-plt  # a delivery calls CAF and the allocator so often that the jump between is 1.5 % of a simulated run
  -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(TROUPE_SANITIZE)
  target_compile_options(troupe_settings INTERFACE -fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(troupe_settings INTERFACE -fsanitize=${TROUPE_SANITIZE})
  if(TROUPE_SANITIZE MATCHES undefined)
    # CAF's spawn binds a null reference when there are no arguments: harmless, and not ours.
    target_compile_options(troupe_settings INTERFACE -fno-sanitize=null -fno-sanitize-recover=undefined)
    # A mailbox of CAF takes the head of its list for an element; the simulated world empties mailboxes itself.
    target_compile_options(troupe_settings INTERFACE
      $<$<STREQUAL:$<TARGET_PROPERTY:NAME>,troupe_testing>:-fno-sanitize=vptr>)
    # Checking alignment makes a source with variants of hooks three times as slow to compile: only where raw memory is.
    target_compile_options(troupe_settings INTERFACE
      $<$<NOT:$<STREQUAL:$<TARGET_PROPERTY:NAME>,troupe_backends>>:-fno-sanitize=alignment>)
  endif()
endif()

# troupe_light(TARGET...): computes little itself, so the default build optimises it no more than a debugger likes: one
# of the program's units takes 30 s of processor time with -O2 and 16 with -Og, a test with LibTorch 39 s with -O1
# and 33. A build type of one's own keeps its flags. A sanitized tree does not optimise it: 60 s with -O1, 41 with -O0.
function(troupe_light)
  foreach(target IN LISTS ARGV)
    if(TROUPE_SANITIZE)
      target_compile_options(${target} PRIVATE -O0)
    else()
      target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo>:-Og>)
    endif()
  endforeach()
endfunction()

# troupe_one_unit(TARGET...): in a sanitized tree, which is built from nothing far more often than edited, all sources
# of the target are one unit, whatever their groups: half the time of each is headers and what their templates make;
# two of backends/torch's groups take 79 and 60 s of processor time, at once 97; the actors' seven sources 134 s and 79.
function(troupe_one_unit)
  if(TROUPE_SANITIZE AND TROUPE_COMPILE_TOGETHER)
    set_target_properties(${ARGV} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE BATCH UNITY_BUILD_BATCH_SIZE 0)
  endif()
endfunction()

find_program(TROUPE_MOLD mold)
if(TROUPE_MOLD)
  target_link_options(troupe_settings INTERFACE -fuse-ld=mold)
endif()
find_program(TROUPE_CCACHE ccache)
if(TROUPE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
    CCACHE_SLOPPINESS=time_macros,include_file_mtime,include_file_ctime ${TROUPE_CCACHE})
endif()

# GCC begins to collect garbage at 128 MB, which takes a tenth of its time, and a fifth with LibTorch's headers:
# a test of callbacks 100 s of processor time, 81 with 3 GB.
cmake_host_system_information(RESULT _megabytes QUERY TOTAL_PHYSICAL_MEMORY)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  math(EXPR _heap "${_megabytes} * 128")  # kilobytes: an eighth of the memory
  if(_heap GREATER 3000000)
    set(_heap 3000000)
  endif()
  target_compile_options(troupe_settings INTERFACE --param=ggc-min-heapsize=${_heap} --param=ggc-min-expand=100)
endif()

# Compiling a unit with LibTorch takes up to 4.4 GB: as many at a time as memory carries.
math(EXPR _torch_jobs "(${_megabytes} - 1000) / 4500")
if(_torch_jobs LESS 1)
  set(_torch_jobs 1)
endif()
set_property(GLOBAL APPEND PROPERTY JOB_POOLS troupe_torch=${_torch_jobs})

# troupe_compile_together(TARGET GROUP SOURCES...): one translation unit of them, because headers and what their
# templates make take most of the time of each (five programs of tests with LibTorch: 24 s each, 50 s together). So
# names in unnamed namespaces are unique within a group. A group takes up to 40 s; TROUPE_COMPILE_TOGETHER=OFF compiles
# each source alone. CMake leaves sources with options of their own alone.
function(troupe_compile_together target group)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TROUPE_COMPILE_TOGETHER} UNITY_BUILD_MODE GROUP)
  # A source that is included is a header to this warning.
  target_compile_options(${target} PRIVATE $<$<BOOL:${TROUPE_COMPILE_TOGETHER}>:-Wno-subobject-linkage>)
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${group})
endfunction()

# troupe_folder(TARGET SOURCES...): a folder's sources of a target, compiled together, with those of the other folders
# for which the folder above has set TROUPE_GROUP to the same name.
function(troupe_folder target)
  target_sources(${target} PRIVATE ${ARGN})
  get_filename_component(group ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  if(TROUPE_GROUP)
    set(group ${TROUPE_GROUP})
  endif()
  troupe_compile_together(${target} ${group} ${ARGN})
endfunction()

# troupe_library(NAME SOURCES ... PUBLIC ... PRIVATE ...): a static library with the project's settings. Public headers
# lie below include/troupe of its folder or of the folder above; all others are included from the repository's root.
function(troupe_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;PUBLIC;PRIVATE")
  add_library(${name} STATIC ${arg_SOURCES})
  string(REPLACE "troupe_" "" short ${name})
  add_library(troupe::${short} ALIAS ${name})
  target_include_directories(${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>)
  foreach(above "" /..)
    get_filename_component(public ${CMAKE_CURRENT_SOURCE_DIR}${above}/include ABSOLUTE)
    if(EXISTS ${public}/troupe)
      target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${public}>)
    endif()
  endforeach()
  target_include_directories(${name} INTERFACE $<INSTALL_INTERFACE:include>)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_link_libraries(${name} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE} $<BUILD_INTERFACE:troupe_settings>)
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${short})
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  if(folder MATCHES "^apps/testing")  # its public headers reach internal ones
    target_include_directories(${name} INTERFACE $<INSTALL_INTERFACE:include/troupe/detail>)
  endif()
  # Of the programs' libraries those that troupe::main needs.
  if(folder MATCHES "^apps/(testing|bench|command_line|http|troupe)" OR NOT folder MATCHES "^(apps|tests)/")
    install(TARGETS ${name} EXPORT troupe_targets COMPONENT development)
    set_property(GLOBAL APPEND PROPERTY TROUPE_INSTALLED ${name})
  endif()
endfunction()

# troupe_test(NAME SOURCES ... LIBRARIES ... [LABELS ...] [TIMEOUT seconds] [MUTATED source] [BY_SOURCE]): one Catch2
# program, compiled as one unit. Each case is a ctest, with these exceptions:
#   MUTATED     names a product source: tests/mutants/mutants.py links that program with the mutants of the source, then
#               runs it
#   BY_SOURCE   each source is a ctest, which troupe_tests_by_source adds: for many small cases of a program that takes
#               longer to start than they take. None of them may be skipped
#   with AddressSanitizer the program is one ctest
# A case that cannot show here what it is for says WARN("SKIPPED: ...") and returns; ctest counts it as skipped if
# nothing has failed.
#
# Labels choose what the build trees of .ci/run take (the target tests_LABEL builds what bears it):
#   torch       links LibTorch: set here, from the libraries
#   tsan        runs threads under ThreadSanitizer: nothing of packaged CAF, which is not instrumented, runs in it
#   end_to_end  starts the real program
#   long        over 20 s: starts early, and is left out of sanitized trees
function(troupe_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "BY_SOURCE" "TIMEOUT;MUTATED" "SOURCES;LIBRARIES;LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  set(cost 0)
  if(TROUPE_SANITIZE AND ("long" IN_LIST arg_LABELS OR arg_MUTATED))  # the latter compile when they run
    return()
  endif()
  if("long" IN_LIST arg_LABELS)
    set(cost 80)  # ctest of a fresh tree has no costs from an earlier run
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} troupe_catch_main troupe_settings)
  troupe_compile_together(${name} all ${arg_SOURCES})
  troupe_light(${name})
  if("troupe::torch" IN_LIST arg_LIBRARIES OR "LibTorch::torch" IN_LIST arg_LIBRARIES)
    list(APPEND arg_LABELS torch)
    set_property(TARGET ${name} PROPERTY JOB_POOL_COMPILE troupe_torch)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  foreach(label IN LISTS arg_LABELS)
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${name})
  endforeach()
  if(arg_MUTATED)
    add_test(NAME ${name} COMMAND ${TROUPE_PLAIN_PYTHON} -B ${PROJECT_SOURCE_DIR}/tests/mutants/mutants.py
      run ${PROJECT_BINARY_DIR} ${name} ${arg_MUTATED})
    set_tests_properties(${name} PROPERTIES TIMEOUT 300 COST 50)
    return()
  endif()
  if(TROUPE_SANITIZE MATCHES address)  # to start a program takes up to 0.8 s there, most cases a tenth of that
    add_test(NAME ${name} COMMAND ${name})
    set(cost 50)
    if("torch" IN_LIST arg_LABELS)  # the longest by far: two minutes
      set(cost 100)
    endif()
    set_tests_properties(${name} PROPERTIES TIMEOUT 1200 COST ${cost} LABELS "${arg_LABELS}")
    return()
  endif()
  if(arg_BY_SOURCE)
    return()
  endif()
  catch_discover_tests(${name} TEST_PREFIX "${name}/" TEST_LIST ${name}_cases PROPERTIES
    TIMEOUT ${arg_TIMEOUT} COST ${cost} SKIP_REGULAR_EXPRESSION "SKIPPED:.*(All tests passed|- none -)")
  # Catch's module flattens lists, so several labels need a file of their own, read after its.
  if(arg_LABELS)
    set(labels ${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake)
    file(CONFIGURE OUTPUT ${labels} @ONLY CONTENT
      "if(@name@_cases)\n  set_tests_properties(\${@name@_cases} PROPERTIES LABELS \"@arg_LABELS@\")\nendif()\n")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${labels})
  endif()
endfunction()

# troupe_tests_by_source(NAME): the ctests of a troupe_test with BY_SOURCE, when it has all of its sources.
function(troupe_tests_by_source name)
  if(TROUPE_SANITIZE MATCHES address)
    return()
  endif()
  get_target_property(sources ${name} SOURCES)
  list(FILTER sources INCLUDE REGEX "_test\\.cpp$")
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM stem)
    add_test(NAME ${name}/${stem} COMMAND ${name} -\# "[#${stem}]~[.]" -w NoTests)
    set_tests_properties(${name}/${stem} PROPERTIES TIMEOUT 600 COST 60 LABELS torch)
  endforeach()
endfunction()
