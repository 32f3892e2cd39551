# Run by CPack before it packs: what Debian has elsewhere, or compressed.
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()
set(usr ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr)
set(doc ${usr}/share/doc/zf-train)
file(RENAME ${usr}/share/zsh/site-functions ${usr}/share/zsh/vendor-completions)
file(RENAME ${doc}/LICENSE ${doc}/copyright)
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE ${doc}/changelog
"zf-train (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * Packed from its sources; their history is what has changed.

 -- ${CPACK_PACKAGE_CONTACT}  ${now}
")
file(GLOB compressed ${usr}/share/man/man1/*.1 ${doc}/changelog)
execute_process(COMMAND gzip -9n ${compressed} COMMAND_ERROR_IS_FATAL ANY)
