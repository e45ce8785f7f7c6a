find_program(TROUPE_PLAIN_PYTHON python3 REQUIRED)

# The Python of the oracle: one with torch, numpy and safetensors. Either the environment that apps/setup.sh made, or
# the Python that LibTorch belongs to.
if(NOT TROUPE_ORACLE)
  set(_python_places ${PROJECT_SOURCE_DIR}/build/venv/bin/python3)
  if(LibTorch_ROOT_DIR)
    get_filename_component(_owner ${LibTorch_ROOT_DIR}/../../../../bin/python3 ABSOLUTE)
    list(APPEND _python_places ${_owner})
  endif()
  string(CONCAT _has_all "import sys\nfrom importlib.util import find_spec as f\n"
    "sys.exit(not (f('torch') and f('numpy') and f('safetensors')))")
  foreach(_python IN LISTS _python_places)
    if(EXISTS ${_python} AND NOT TROUPE_ORACLE)
      execute_process(COMMAND ${_python} -c "${_has_all}" RESULT_VARIABLE _missing OUTPUT_QUIET ERROR_QUIET)
      if(_missing EQUAL 0)
        set(TROUPE_ORACLE ${_python} CACHE FILEPATH "Python with torch, numpy and safetensors")
      endif()
    endif()
  endforeach()
endif()
if(TROUPE_WITH_TORCH AND NOT TROUPE_ORACLE)
  message(WARNING "No Python with torch, numpy and safetensors: tests that compare with PyTorch are disabled. "
    "`bash apps/setup.sh --tests` makes one; -DTROUPE_ORACLE=PYTHON names one.")
endif()

# troupe_script_test(NAME SCRIPT file.py [ORACLE] [ARGUMENTS ...] [LABELS ...] [TIMEOUT seconds]): a Python script that
# ends with 0 when it passes and 77 when it skips. Plain Python 3 without packages runs it, or with ORACLE the one with
# PyTorch. The built `troupe` program is in its environment as TROUPE_PROGRAM (label end_to_end). Scripts are the
# longest tests. A fixed cost makes ctest start them first, also before it has measured any test.
function(troupe_script_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "ORACLE" "SCRIPT;TIMEOUT" "ARGUMENTS;LABELS")
  set(python ${TROUPE_PLAIN_PYTHON})
  set(disabled FALSE)
  if(arg_ORACLE)
    set(python ${TROUPE_ORACLE})
    if(NOT TROUPE_ORACLE)
      set(python false)
      set(disabled TRUE)
    endif()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  set(cost 100)
  if("long" IN_LIST arg_LABELS)
    set(cost 200)
  endif()
  set(program)
  if(TARGET troupe)
    set(program TROUPE_PROGRAM=$<TARGET_FILE:troupe>)
  endif()
  add_test(NAME ${name} COMMAND ${python} -B ${CMAKE_CURRENT_SOURCE_DIR}/${arg_SCRIPT} ${arg_ARGUMENTS})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}" ENVIRONMENT "${program}"
    SKIP_RETURN_CODE 77 COST ${cost} DISABLED ${disabled})
endfunction()
