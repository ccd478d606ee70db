# What `cmake --install` installs, and the Debian package that `cpack` makes of it: the program, its
# unit, documentation and the demo model, so that it answers as soon as it is installed.
install(TARGETS kvcake RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR}  # as README.md links to them
        FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
install(FILES examples/restore.c DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)  # as docs/library.md
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)
install(DIRECTORY models/demo DESTINATION ${CMAKE_INSTALL_DATADIR}/kvcake/models
        PATTERN held_out EXCLUDE)
# The unit names paths of /usr; elsewhere it would hide that of the package.
install(CODE "
  if(CMAKE_INSTALL_PREFIX STREQUAL \"/usr\")
    file(INSTALL DESTINATION \"/usr/lib/systemd/system\" TYPE FILE
         FILES \"${CMAKE_SOURCE_DIR}/deploy/kvcake.service\")
    file(INSTALL DESTINATION \"/usr/lib/sysusers.d\" TYPE FILE RENAME kvcake.conf
         FILES \"${CMAKE_SOURCE_DIR}/deploy/kvcake.sysusers\")
  endif()")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ
    GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)  # whatever the umask
set(CPACK_PACKAGE_CONTACT "The kvcake maintainers <maintainers@kvcake.example>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "computes and loads the KV cache of long prompts at once")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Stores and ranks that speak TLS with who has a public authority's certificate.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates)
# A yardstick of `kvcake bench prefill`; mpirun, for ranks on several machines.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libopenblas0, openmpi-bin")
set(packaging ${CMAKE_SOURCE_DIR}/packaging)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${packaging}/postinst ${packaging}/prerm
    ${packaging}/postrm)
include(CPack)
