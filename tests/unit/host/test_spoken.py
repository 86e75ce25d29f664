"""Each form in which a secret is written without a sign of assignment, by an example of its own."""

from __future__ import annotations

import re

import pytest

from gpunode.host.redact import text
from gpunode.host.spoken import FORMS, Form

SECRET = "Zq7xK2mW9pLs4vT1"
WRITTEN = (
    "sent with bearer {}",
    "WWW-Authenticate: Basic {}",
    "helm install x --set-password {} ./chart",
    "minio --secret-key {}",
    "docker run -e NGC_API_KEY {} image",
    "ENV HF_TOKEN {}",
    "snmpget -v2c -c {} host",
    "rocommunity {}",
    "bindpw {}",
    '  admin-password "{}";',
    "? password\n: {}",
    "openssl rsa -passin pass:{}",
    'vpn.example.org : PSK "{}"',
    "ldapsearch -x -D cn=admin -w {}",
    "smbclient -U bob%{} //server/share",
    "htpasswd -bc users bob {}",
    "echo {} | sudo -S apt-get update",
    "ctr images pull --user bob:{} registry/image",
    "crictl pull --auth {} image",
    "kubectl create secret generic x --from-literal=key={}",
    "machine github.com password {}",
    "ldap_default_authtok = {}",
    "root=cifs cifsroot=//bob:{}@server/share",
    "[helm install --password, {}, chart]",
    "sudo pro attach {}",
    "docker login -u bob -p {} nvcr.io",
    "docker login -u bob --password-stdin <<< {}",
    "k3s agent -s https://server:6443 -t {}",
    "SUSEConnect -r {}",
    "redis-cli -h host -a {}",
    "useradd -m -p {} bob",
    "password\t{}",
    "mysql -u root -p{}",
    "sshpass -p {} ssh host",
    "ipmitool -I lanplus -U admin -P {} sdr",
    "curl -fsSL -u bob:{} https://host",
    "login bob password {}",
    "$KUBECTL create secret generic hf --from-literal=HF={}",
    "    --from-literal=foo={} \\",
    "CREATE USER 'slurm'@'localhost' IDENTIFIED BY '{}';",
    "ALTER USER bob WITH PASSWORD '{}';",
    "SET PASSWORD FOR 'slurm'@'localhost' = PASSWORD('{}');",
    "d-i passwd/root-password password {}",
    "<password>{}</password>",
    "createUser bob SHA {}",
    "the password is {}",
    "bob's password for the node: {}",
    "the token was {}",
    "API key: {}",
    "rootpw --plaintext {}",
    "authorization:\n- {}",
    "- name: HF_TOKEN\n  value: {}",
    "{{name: HF_TOKEN, value: {}}}",
    "- value: {}\n  name: HF_TOKEN",
    '{{"value": "{}", "name": "HF_TOKEN"}}',
    '{{"name": "HF_TOKEN", "value": "{}"}}',
    '"{{\\"name\\":\\"HF_TOKEN\\",\\"value\\":\\"{}\\"',
)
# More than the secret goes: the scheme, or what tells how the hash was made.
WHOLE = (
    f"authorization: digest {SECRET}",
    f"grub.pbkdf2.sha512.10000.{SECRET.encode().hex()}.{SECRET.encode().hex()}",
    f"root:$6$rounds${SECRET}{SECRET}:19000:0:99999:7:::",
)


@pytest.mark.parametrize("written", WRITTEN)
def test_the_secret_goes_and_the_rest_stays(written: str) -> None:
    before, after = written.format("|").split("|", 1) if "|" not in written else written.split("{}")
    hidden = text(written.format(SECRET))
    assert SECRET not in hidden
    assert hidden.startswith(before)
    assert hidden.endswith(after)


@pytest.mark.parametrize("form", FORMS, ids=[form.before[:40] for form in FORMS])
def test_no_form_is_without_an_example(form: Form) -> None:
    pattern = re.compile(form.pattern, re.IGNORECASE | re.MULTILINE)
    assert any(pattern.search(written.format(SECRET)) for written in WRITTEN) or any(map(pattern.search, WHOLE))


@pytest.mark.parametrize("line", WHOLE)
def test_the_secret_goes_with_what_tells_of_it(line: str) -> None:
    hidden = text(line)
    assert SECRET not in hidden
    assert SECRET.encode().hex() not in hidden
