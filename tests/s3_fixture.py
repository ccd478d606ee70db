"""Starts moto's S3 server (PyPI) for the tests beside this file. It checks signatures, as AWS
does."""
import atexit
import os
import pathlib
import subprocess
import sys
import tempfile

import boto3
from botocore.config import Config

from server_fixture import eventually
from store_fixture import TRIES, any_port

BUCKET = "chunks"
POLICY = """{"Version": "2012-10-17",
             "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}"""
UNSIGNED_CALLS = 4  # those that make the user and its bucket, below


class S3:
    """A server with one empty bucket, and a user who may use it. It ends with the test's process at
    the latest; so it is to be started on its main thread."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="kvcake-s3-")
        self.process = None
        atexit.register(self.close)
        if not any(self._start() for _ in range(TRIES)):
            raise AssertionError(self.log())
        iam = self._client("iam", "nobody", "nothing")
        iam.create_user(UserName="kvcake")
        iam.put_user_policy(UserName="kvcake", PolicyName="all", PolicyDocument=POLICY)
        key = iam.create_access_key(UserName="kvcake")["AccessKey"]
        self.access_key, self.secret_key = key["AccessKeyId"], key["SecretAccessKey"]
        self.client = self._client("s3", self.access_key, self.secret_key)
        self.client.create_bucket(Bucket=BUCKET)

    def _start(self):
        self.port = any_port()
        with open(self.folder.name + "/log", "w", encoding="utf-8") as log:
            # pylint: disable-next=consider-using-with
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "moto.server", "-H",
                 "127.0.0.1", "-p", str(self.port)], stdout=log, stderr=log,
                env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": str(UNSIGNED_CALLS)})
        eventually(lambda: "Running on" in self.log() or self.process.poll() is not None,
                   "moto starts")
        return self.process.poll() is None

    def _client(self, service, key, secret):
        return boto3.client(service, endpoint_url=f"http://127.0.0.1:{self.port}",
                            region_name="us-east-1", aws_access_key_id=key,
                            aws_secret_access_key=secret,
                            config=Config(s3={"addressing_style": "path"},
                                          retries={"max_attempts": 0}))

    @property
    def environment(self):
        """The variables that name the user."""
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key,
                "no_proxy": "127.0.0.1"}

    def url(self, prefix="", **options):
        named = "".join(f"&{name}={value}" for name, value in options.items())
        return f"s3://{BUCKET}{prefix}?endpoint=http://127.0.0.1:{self.port}{named}"

    def names(self):
        """Those of all objects."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return [found["Key"] for page in pages for found in page.get("Contents", [])]

    def log(self):
        return pathlib.Path(self.folder.name, "log").read_text(errors="replace")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        atexit.unregister(self.close)
        if self.process:
            self.kill()
        self.folder.cleanup()
