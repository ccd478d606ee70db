"""Starts nginx as what is left of S3 where nobody checks signatures: PUT and DELETE as WebDAV has
them, GET with ranges, HEAD."""
import os
import pathlib
import re
import subprocess
from unittest import mock

from network_fixture import listens
from server_fixture import eventually
from store_fixture import StoreServer

BUCKET = "chunks"
# nginx asks for none, but nothing is sent without.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "anybody", "AWS_SECRET_ACCESS_KEY": "anything",
               "AWS_EC2_METADATA_DISABLED": "true"}
# What it can be told to answer, and what S3 calls that.
ERRORS = {403: "AccessDenied", 404: "NoSuchKey", 500: "InternalError", 503: "SlowDown"}
ERROR = 'if (-f {file}) {{ return {status} "<Error><Code>{code}</Code></Error>"; }}\n'
CONFIG = """
{user}
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  log_format short "$request_method $status $http_range $request_uri";
  access_log {folder}/access.log short;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen {host}:{port} {ssl};
    {certificate}
    root {folder}/data;
    client_max_body_size 0;
    {errors}
    location / {{
      dav_methods PUT DELETE;
      create_full_put_path on;
    }}
  }}
}}
"""


class Nginx(StoreServer):
    """An nginx with an empty directory. `within` is a command that runs others elsewhere, where
    `host` is; `tls`: its certificate's file and its key's."""

    LOG = "error.log"

    def __init__(self, host="127.0.0.1", within=(), tls=()):
        super().__init__("nginx")
        self.data = pathlib.Path(self.folder.name, "data")
        self.data.mkdir()
        self.host, self.within, self.tls = host, within, tls
        self.start_at_any_port()

    def start(self):
        """Begins, with what it has kept, on the same port. Returns whether it does."""
        certificate = ""
        if self.tls:
            certificate = "ssl_certificate {}; ssl_certificate_key {};".format(*self.tls)
        config = pathlib.Path(self.folder.name, "nginx.conf")
        errors = "".join(ERROR.format(file=f"{self.folder.name}/{status}", status=status, code=code)
                         for status, code in ERRORS.items())
        # Else root's would give its directories to a user whom a namespace need not have.
        user = "user root;" if os.geteuid() == 0 else ""
        config.write_text(CONFIG.format(user=user, folder=self.folder.name, host=self.host,
                                        port=self.port, ssl="ssl" if self.tls else "",
                                        certificate=certificate, errors=errors))
        # pylint: disable-next=consider-using-with
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *self.within, "nginx", "-p", self.folder.name, "-e",
             self.folder.name + "/error.log", "-c", str(config)])
        eventually(lambda: listens(self.host, self.port) or self.process.poll() is not None,
                   "nginx starts")
        return self.process.poll() is None

    @property
    def endpoint(self):
        return f"http{'s' if self.tls else ''}://{self.host}:{self.port}"

    def url(self, endpoint=None, **options):
        named = "".join(f"&{name}={value}" for name, value in options.items())
        return f"s3://{BUCKET}/kv?endpoint={endpoint or self.endpoint}{named}"

    def answer_all(self, status):
        """Answers everything with an error from now on."""
        pathlib.Path(self.folder.name, str(status)).touch()

    def answer_again(self, status):
        pathlib.Path(self.folder.name, str(status)).unlink()

    def chunks(self):
        """The files of those that it keeps."""
        return [path for path in self.data.glob(f"{BUCKET}/kv/v1/*/*") if path.is_file()]

    def requests(self, method, status=r"\d+"):
        """Counts those that it has answered so."""
        text = pathlib.Path(self.folder.name, "access.log").read_text()
        return len(re.findall(f"^{method} {status} ", text, flags=re.M))


def use_credentials(test):
    """Gives credentials to what a test starts from now on."""
    user = mock.patch.dict("os.environ", CREDENTIALS)
    user.start()
    test.addCleanup(user.stop)
