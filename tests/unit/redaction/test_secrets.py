"""Secrets that leaked into captures, and words that were wrongly redacted although readers need them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpunode.redaction.secrets import (
    CONTEXT_FREE_FORMS,
    CONTEXTUAL_FORMS,
    SECRET_OPTIONS,
    TOKEN_PATTERN_BY_PREFIX,
    WEBHOOK_PREFIXES,
    redact_known_shapes,
    redact_text,
)

HEX = "0123456789abcdef0123456789abcdef"
TOKENS = ("gsk_", "xai-", "r8_", "rpa_", "pplx-")
CUT = "-----END RSA PRIVATE KEY-----"
# By the numbers of the review: each line with the text that must be redacted.
LEAKS = {
    "1": ("BOOT_IMAGE=/vmlinuz inst.sshpw=hunter2xx quiet", "hunter2"),
    "2": ("HTTPS_PROXY=http://bob:p@ss#w0rd@proxy:3128", "ss#w0rd"),
    "3": ("input password: hunter2xx\ninput password again: hunter2xx\n", "hunter2"),
    "4": (r"printf 'hunter2xx\nhunter2xx\n' | mokutil --import MOK.der", "hunter2"),
    "5": ("curl -d 'user=bob&passwd=hunter2xx' http://bmc/", "hunter2"),
    "6": ("[client.admin]\n\tkey = AQBSdFhcAAAAABAAq7Wk2nVx9Lr4Tz8PAAA+Ww==\n", "q7Wk2nVx"),
    "7": (f'{{"username":"bob","key":"{HEX}"}}', HEX),
    **{f"8 {one}": (f"said {one}q7Wk2nVx9Lr4Tz8Pq7 then", "q7Wk2nVx") for one in TOKENS},
    "8 named": ("GROQ_API=gsk_q7Wk2nVx9Lr4Tz8P", "q7Wk2nVx"),
    "9": (f"sbatch --export=ALL,WANDB={HEX}01234567", HEX),
    "9 option": (f"train.py --wandb {HEX}01234567", HEX),
    "10": ("https://api.telegram.org/bot123456789:AAF-q7Wk2nVx/sendMessage", "q7Wk2nVx"),
    "10 zapier": ("https://hooks.zapier.com/hooks/catch/1/q7Wk2nVx/", "q7Wk2nVx"),
    "11": ("ngrok config add-authtoken 2abcq7Wk2nVx", "q7Wk2nVx"),
    "12": ("vastai set api-key 0123q7Wk2nVx", "q7Wk2nVx"),
    "13": ("rclone config create r s3 secret_access_key wJalq7Wk2nVx", "q7Wk2nVx"),
    "14": ("ipa-client-install -w hunter2xx", "hunter2"),
    "15": ("echo hunter2xx | kinit bob@REALM", "hunter2"),
    "15 here": ("kinit bob <<< hunter2xx", "hunter2"),
    "16": ("echo -n hunter2xx | cryptsetup luksFormat /dev/sda -", "hunter2"),
    "17": ("BW_SESSION=q7Wk2nVx9Lr4==", "q7Wk2nVx"),
    "17 op": ("OP_SERVICE_ACCOUNT=ops_q7Wk2nVx9Lr4Tz8P", "q7Wk2nVx"),
    "18": ("MUNGEKEY=q7Wk2nVx9Lr4Tz8P", "q7Wk2nVx"),
    "18 spoken": ("munge key: q7Wk2nVx9Lr4Tz8P", "q7Wk2nVx"),
    "19": ("sqlcmd -S db -U sa -P hunter2xx", "hunter2"),
    "20": ("//srv/share /mnt cifs user=bob%hunter2xx", "hunter2"),
    # The same kinds in other places.
    "21": ("<adminPassword>hunter2xx</adminPassword>", "hunter2"),
    "22": ("helm registry login -u bob -p hunter2xx reg", "hunter2"),
    "23": ("az login --service-principal -u x -p hunter2xx", "hunter2"),
    "24": ("racadm -r 10.0.0.1 -u root -p hunter2xx getsysinfo", "hunter2"),
    "25": ("ua attach C1hunter2xx", "hunter2"),
    "26": ("yes hunter2xx | passwd root", "hunter2"),
    "27": ("mokutil --generate-hash=hunter2xx", "hunter2"),
    "28": ("openssl enc -aes256 -k hunter2xx", "hunter2"),
    "29": ("ssh-keygen -t ed25519 -N hunter2xx", "hunter2"),
    "30": ("rhc connect -a hunter2xx -o 1", "hunter2"),
    # Found by an attacker's review: multi-line standard input, command substitution, operands, tokens as paths.
    "31": ("echo 'root:hunter2xx\nbob:hunter2xx' | chpasswd", "hunter2"),
    "32": ("cat <<EOF | chpasswd\nroot:hunter2xx\nEOF", "hunter2"),
    "33": ("rootpw --plaintext hunter2xx", "hunter2"),
    "34": ("wpa_passphrase 'My wifi' hunter2xx", "hunter2"),
    "35": (r"net use Z: \\host\share hunter2xx /user:u", "hunter2"),
    "36": ("smbclient //a/b hunter2xx -U bob", "hunter2"),
    "37": ("smbclient //a/b -U 'DOMAIN/bob%hunter2xx'", "hunter2"),
    "38": ("TOKEN=$(echo hunter2xx | base64)", "hunter2"),
    "39": ("password: `echo -n hunter2xx | base64`", "hunter2"),
    "40": ('kubectl create secret generic x --from-literal=password="$(printf "hunter2xx" | base64)"', "hunter2"),
    "41": ("curl https://h/v3/import/q7Wk2nVx9Lr4_c-m-abcd1234.yaml", "q7Wk2nVx"),
    # Forms that no test covered.
    "42": (f"PRIVATE_KEY=0x{HEX}{HEX}", HEX),
    "43": ("root:$6$rounds=5000$abcdefgh$q7Wk2nVx9Lr4:19000:0", "q7Wk2nVx"),
    "44": ("Set-Cookie: a=bc; sid=q7Wk2nVx; Path=/", "q7Wk2nVx"),
    "45": ("[bootstrap-token] Using token: abcdef.0123456789abcdef", "0123456789abcdef"),
    "46": (f"Using certificate key:\n{HEX}{HEX}\n", HEX),
    "47": ("crictl pull --creds bob:hunter2xx img", "hunter2"),
    "48": ("ctr images pull -u bob:hunter2xx img", "hunter2"),
    # The PIN of the machine's module signing key, as set in Debian's and the kernel's documentation.
    "pin": ("sudo KBUILD_SIGN_PIN=hunter2xx sign-file sha256 MOK.priv MOK.der nvidia.ko", "hunter2"),
    "pin of make": ("make KBUILD_SIGN_PIN=hunter2xx modules_install", "hunter2"),
    "wandb": (f"wandb login {HEX}01234567", HEX),
    "wandb by sudo": (f"bob : PWD=/x ; USER=root ; COMMAND=/opt/venv/bin/wandb login --relogin {HEX}01234567", HEX),
    "key without its beginning": (f"{'q7Wk2nVx' * 8}\nq7Wk2nVx\n-----END OPENSSH PRIVATE KEY-----", "q7Wk2nVx"),
    "the same in a journal": (
        "\n".join(f"Nov 21 10:00:00 h app[1]: {line}" for line in ("q7Wk2nVx" * 8, "9Lq7Wk2nVx==", CUT)), "q7Wk2nVx"),
    "key of OpenVPN": (f"-----BEGIN OpenVPN Static key V1-----\n{HEX}\n-----END OpenVPN Static key V1-----", HEX),
    "key of PuTTY": ("Private-Lines: 2\nAAAAq7Wk2nVx9Lr4\nq7Wk2nVx=\nPrivate-MAC: 01", "q7Wk2nVx"),
    "unit": ("ExecStart=/usr/bin/app -u bob -p S3cretPw9 --run", "S3cret"),
    "mongosh": ("mongosh -u bob -p hunter2xx", "hunter2"),
    "etcdctl": ("etcdctl --user root:hunter2xx get x", "hunter2"),
    "consul": ("consul agent -encrypt=q7Wk2nVx9Lr4==", "q7Wk2nVx"),
    "gitlab-runner": ("gitlab-runner register -r q7Wk2nVx9Lr4", "q7Wk2nVx"),
    "ipmitool": ("ipmitool -I lanplus -k hunter2xx sdr", "hunter2"),
    "mc": ("mc alias set m https://h KEY hunter2xx", "hunter2"),
    "cloudflared": ("cloudflared service install eyJhIjoiq7Wk2nVx", "q7Wk2nVx"),
    "sssd": ("ldap_default_authtok = hunter2xx", "hunter2"),
    "several words": ("password: correct horse battery staple", "battery"),
    "a quote in quotes": (r"PASS='it'\''s hunter2xx'", "hunter2"),
    # Mutants that no test of the former redactor detected.
    "a path is no excuse": ("password=/q7Wk2nVx/9Lr4Tz8P", "q7Wk2nVx"),
    "a path is none of a token": ("API_TOKEN: /usr/q7Wk2nVx/9Lr4Tz8P", "q7Wk2nVx"),
    "regcode": ("regcode=A1B2C3D4E5F6", "A1B2"),
}  # fmt: skip
STAYS = [
    *("host srv001.mydatacenterprod up", "host01.abcdefghijklmnop"),
    "P_Key: 0x8001",
    *("work submit token: 0x12", "pushbuffer token: 0x7f00aa10", "nvAssertFailed: token=0xdeadbeef"),
    *("secret: nvidia-license-config", "auth: unix", "community: ubuntu"),
    *("pass: 12 tests", "token: 4096 tokens/s", "gsp cookie: 0x5"),
    "NVRM: Xid (PCI:0000:65:00): 79, pid=1234, GPU has fallen off the bus.",
    "nvc.c:376] initializing library context (version=1.9.0, build=5e135c17d6dbae861ec343e9a8d3a0d2af758a4f)",
    "https://nvcr.io:443/nvidia/cuda@sha256:0123 the token is invalid or expired 401",
    "Upgrade: passwd:amd64 (1:4.13, 1:4.14), libsecret-1-0:amd64 (0.20, 0.21)",
    " passwd : Depends: libpam-modules but it is not going to be installed",
    "MOK_SIGNING_KEY=/var/lib/dkms/mok.key",
    "docker run -e NVIDIA_VISIBLE_DEVICES=all -p 8080:80 -u 1000:1000 nvidia/cuda nvidia-smi",
    "[sudo] password for bob: modprobe: ERROR: could not insert 'nvidia': No such device",
    "echo 'blacklist nouveau' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf",
    "<https://h:8080>, <bob@example.org>; git@github.com:NVIDIA/libnvidia-container.git",
    "container=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "rootpw --lock, smbclient -L //host -N, net use, wpa_passphrase: command not found",
    "cat <<EOF | kubectl apply -f -\nkind: Pod\nEOF",
    "GPUS=$(nvidia-smi -L | wc -l); echo $GPUS | base64; echo 1 | tee /sys/x",
    f"Loading X.509 cert 'Acme Corp: Signing: {HEX}01234567'",
    f"containerd: {HEX}01234567, runc version: {HEX}01234567",
    "ExecStart=/usr/bin/docker run -p 8080:80 -p 9400 -p 127.0.0.1:9400:9400 --pids-limit 5 nvidia/cuda",
    "ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced -p nvidia",
    "run wandb login to log in; fw_reserved_memory_region_size_total 5; events at hc-ping.com",
    "the key ended: -----END CERTIFICATE-----, password: not changed yet",
    "token: invalid NVIDIA license token; MOK password: invalid",
]


@pytest.mark.parametrize("number", LEAKS)
@pytest.mark.parametrize("frame", ["{}", "before\n{}\nafter\n", "\r\n{}\r\n"])
def test_known_leak_is_redacted(number: str, frame: str) -> None:
    written, gone = LEAKS[number]
    kept = redact_text(frame.format(written))
    assert gone not in kept
    assert redact_text(kept) == kept
    assert kept.count("\n") == frame.format(written).count("\n")


@pytest.mark.parametrize("line", STAYS)
def test_useful_line_is_unchanged(line: str) -> None:
    assert redact_text(line) == line


@pytest.mark.parametrize("prefix", TOKEN_PATTERN_BY_PREFIX)
def test_token_is_recognized_by_its_prefix(prefix: str) -> None:
    rest = {"eyJ": "q7Wk2nVx9Lr4.q7Wk2nVx9Lr4", "AKIA": "Q7WK2NVX9LR4TZ8P", "ASIA": "Q7WK2NVX9LR4TZ8P", "dapi": HEX,
            "K10": "q7Wk2nVx::server:9Lr4Tz8P", "AGE-SECRET-KEY-": "Q7WK2NVX9LR4TZ8P"}.get(
        prefix, "q7Wk2nVx9Lr4Tz8Pq7Wk2nVx9Lr4Tz8P"
    )  # fmt: skip
    assert redact_known_shapes(f"said {prefix}{rest} then") == "said redacted then"


@pytest.mark.parametrize("place", WEBHOOK_PREFIXES)
def test_webhook_path_is_redacted(place: str) -> None:
    between = {"hooks.slack.com/": "services/", "hooks.zapier.com/hooks/": "catch/1/", "/api/webhooks/": "123/"}
    assert "q7Wk2nVx" not in redact_known_shapes(f"POST https://h{place}{between.get(place, '')}q7Wk2nVx9Lr4")


def test_every_pattern_has_lowercase_prefilter_words() -> None:
    """No second list determines what is searched."""
    assert all(
        words and all(word == word.lower() for word in words) for words, _ in (*CONTEXT_FREE_FORMS, *CONTEXTUAL_FORMS)
    )
    for program, options in SECRET_OPTIONS.items():
        assert "{}" in options, program


@pytest.mark.parametrize(
    "line", ["my-token.toml:3: expected ']' at the end", "passwd: 2 keys", "secret: no such recipe"]
)
def test_own_messages_are_unchanged(line: str) -> None:
    assert redact_known_shapes(line) == line


def test_private_key_keeps_its_line_structure() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nhunter2\nhunter2\n-----END RSA PRIVATE KEY-----\n"
    assert redact_text(key) == key.replace("hunter2", "redacted")


@pytest.mark.usefixtures("allow_subprocess")
def test_no_pattern_is_compiled_before_it_is_needed() -> None:
    """A screen of gpunode's own text compiles none either."""
    script = (
        "from gpunode.redaction import config, evidence, patterns, secrets\n"
        "secrets.redact_known_shapes('containerd 1.7.28 restarts; see https://docs.nvidia.com')\n"
        "print(patterns.compile_cached.cache_info().currsize)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
