"""Starts moto's S3 server (PyPI) for the tests beside this file. It checks signatures, as AWS
does."""
import os
import subprocess
import sys

import boto3
from botocore.config import Config

from server_fixture import eventually
from store_fixture import StoreServer

BUCKET = "chunks"
POLICY = """{"Version": "2012-10-17",
             "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}"""
UNSIGNED_CALLS = 4  # those that make the user and its bucket, below


def client_of(endpoint, key, secret, service="s3"):
    return boto3.client(service, endpoint_url=endpoint, region_name="us-east-1",
                        aws_access_key_id=key, aws_secret_access_key=secret,
                        config=Config(s3={"addressing_style": "path"},
                                      retries={"max_attempts": 0}))


def names_in(client, bucket):
    """Those of all objects of a bucket."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return [found["Key"] for page in pages for found in page.get("Contents", [])]


class S3(StoreServer):
    """A server with one empty bucket, and a user who may use it."""

    def __init__(self):
        super().__init__("s3")
        self.start_at_any_port()
        iam = client_of(self.endpoint, "nobody", "nothing", "iam")
        iam.create_user(UserName="kvcake")
        iam.put_user_policy(UserName="kvcake", PolicyName="all", PolicyDocument=POLICY)
        key = iam.create_access_key(UserName="kvcake")["AccessKey"]
        self.access_key, self.secret_key = key["AccessKeyId"], key["SecretAccessKey"]
        self.client = client_of(self.endpoint, self.access_key, self.secret_key)
        self.client.create_bucket(Bucket=BUCKET)

    def start(self):
        with open(self.folder.name + "/log", "w", encoding="utf-8") as log:
            # pylint: disable-next=consider-using-with
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "moto.server", "-H",
                 "127.0.0.1", "-p", str(self.port)], stdout=log, stderr=log,
                env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": str(UNSIGNED_CALLS)})
        eventually(lambda: "Running on" in self.log() or self.process.poll() is not None,
                   "moto starts")
        return self.process.poll() is None

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self):
        """The variables that name the user."""
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key,
                "no_proxy": "127.0.0.1"}

    def url(self, prefix="", **options):
        named = "".join(f"&{name}={value}" for name, value in options.items())
        return f"s3://{BUCKET}{prefix}?endpoint={self.endpoint}{named}"

    def names(self):
        """Those of all objects."""
        return names_in(self.client, BUCKET)
