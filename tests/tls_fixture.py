"""Makes certificates for the tests beside this file, as an operator does."""
import os
import subprocess

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
DAYS = ("-days", "2")


class Certificates:
    """Authorities that know nothing of each other, and certificates that they sign: for this
    machine, and for `names` besides, such as "IP:192.0.2.2"."""

    def __init__(self, folder, *names):
        self._folder = folder
        with open(f"{folder}/names", "w", encoding="ascii") as file:
            file.write("subjectAltName=" + ",".join(("IP:127.0.0.1", "DNS:localhost", *names)))

    def _openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], check=True, cwd=self._folder, capture_output=True)

    def authority(self, name):
        """The file of an authority's own certificate. It is made on first use."""
        file = f"{self._folder}/authority-{name}.pem"
        if not os.path.exists(file):
            self._openssl("req", "-x509", *NEW_KEY, *DAYS, "-subj", f"/CN=authority {name}",
                          "-keyout", f"authority-{name}.key", "-out", file)
        return file

    def between(self, name, above):
        """The file of a new authority that is known by the one above it, for issue."""
        with open(f"{self._folder}/{name}.extensions", "w", encoding="ascii") as file:
            file.write("basicConstraints=critical,CA:TRUE")
        self._openssl("req", *NEW_KEY, "-subj", f"/CN=authority {name}", "-keyout",
                      f"authority-{name}.key", "-out", f"{name}.csr")
        self._openssl("x509", "-req", "-in", f"{name}.csr", "-CA", self.authority(above), "-CAkey",
                      f"authority-{above}.key", "-CAcreateserial", *DAYS, "-extfile",
                      f"{name}.extensions", "-out", f"authority-{name}.pem")
        return self.authority(name)

    def issue(self, name, authority):
        """The files of a certificate that an authority has signed, and of its key."""
        certificate, key = f"{self._folder}/{name}.pem", f"{self._folder}/{name}.key"
        self._openssl("req", *NEW_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out",
                      f"{name}.csr")
        self._openssl("x509", "-req", "-in", f"{name}.csr", "-CA", self.authority(authority),
                      "-CAkey", f"authority-{authority}.key", "-CAcreateserial", *DAYS,
                      "-extfile", "names", "-out", certificate)
        os.chmod(key, 0o600)
        return certificate, key
