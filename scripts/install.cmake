# What "cmake --install" installs, and what CPack packs: a Debian package (cpack -G DEB), or an archive
# (cpack -G TGZ). Included by CMakeLists.txt.

# Scripts find configurations, the sample and the program from where they lie, here and there.
include(GNUInstallDirs)
set(shared ${CMAKE_INSTALL_DATADIR}/zf-train)
install(TARGETS zf-train zf-bench zf-run)
install(DIRECTORY configs DESTINATION ${shared})
install(DIRECTORY data/sample DESTINATION ${shared}/data)
install(PROGRAMS scripts/download_glue.sh scripts/download_gpt2.sh scripts/finetune_gpt_glue.sh
  DESTINATION ${shared}/scripts)
install(PROGRAMS scripts/slurm/zf_train.sbatch DESTINATION ${shared}/scripts/slurm)
install(PROGRAMS scripts/pbs/zf_train.pbs DESTINATION ${shared}/scripts/pbs)
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
foreach(program zf-train zf-run zf-bench)
  install(FILES ${manual}/${program}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${manual}/${program}.bash
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME ${program})
  install(FILES ${manual}/_${program} DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
endforeach()

set(ZF_MAINTAINER "zf-train's developers <zf-train@localhost>" CACHE STRING "Who a Debian package names")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR "zf-train's developers")
set(CPACK_PACKAGE_CONTACT ${ZF_MAINTAINER})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "fine-tunes GPT models, their optimizer state in host memory")
set(CPACK_PACKAGE_DESCRIPTION "\
ZenFlow as a command-line program: important channels are updated on the
device in every step, all others on the host, and the device does not wait.
It takes DeepSpeed's JSON, the names and folders of Hugging Face, and the tasks
of run_glue.py; zf-run answers with what has been trained.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/scripts/debian.cmake)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS openmpi-bin) # several ranks
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "curl, unzip, python3") # scripts that download
include(CPack)
