# Writes a header that tells which commit is built; where it says so already, it is left alone.
#
#   cmake -DSOURCE=FOLDER -DOUT=FILE -DCOMMIT=NAME -P scripts/commit.cmake
#
# Without a NAME git is asked. A program that is built with changes that are in no commit says so.
cmake_minimum_required(VERSION 3.22)
function(ask result)
  execute_process(COMMAND git -C ${SOURCE} ${ARGN} OUTPUT_VARIABLE text RESULT_VARIABLE status
    ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(${result} "${text}" PARENT_SCOPE)
  set(status "${status}" PARENT_SCOPE)
endfunction()

if(NOT COMMIT)
  ask(top rev-parse --show-toplevel)
  if(status EQUAL 0)
    file(REAL_PATH "${top}" top)
    file(REAL_PATH "${SOURCE}" SOURCE)
  endif()
  if(status EQUAL 0 AND top STREQUAL SOURCE) # and not a repository that it was unpacked in
    ask(COMMIT rev-parse --short=12 HEAD)
    ask(changes status --porcelain --untracked-files=no -- cmd data model offload CMakeLists.txt)
    if(changes)
      string(APPEND COMMIT " with changes")
    endif()
  else()
    set(COMMIT "unknown")
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define ZF_COMMIT \"@COMMIT@\"\n" @ONLY)
