"""What a typed command can have mended: a part of the node's stack, or nothing of it."""

from __future__ import annotations

import pytest

from gpunode.facts.mends import mended_by, parts
from gpunode.facts.sources import commands, recognise


def changed(typed: str, prompt: str = "root@n:~#") -> set[str]:
    return {part for command in commands(typed) for part in parts(command, prompt)}


@pytest.mark.parametrize(
    "typed",
    [
        "vim train.py",
        "rm nohup.out",
        "cp -r /data/set /scratch",
        "echo done > notes.txt",
        "cat /etc/modprobe.d/nvidia.conf",
        "grep nouveau /etc/modprobe.d/x.conf > /tmp/out",
        "sed 's/x/y/' /etc/docker/daemon.json",
        "pip install rich",
        "pip install -r requirements.txt",
        "./fix.sh",
        "sudo bash -c 'vim train.py'",
        "make install",
        "ansible-playbook site.yml",
        "systemctl restart nginx",
        "systemctl status nvidia-fabricmanager",
        "systemctl daemon-reload",
        "systemctl start nvidia-fabricmanager",
        "nvidia-smi mig -lgip",
        "nvidia-smi -q -d ECC",
        "kubectl rollout status ds/x",
        "gpunode doctor",
        "ubuntu-drivers devices",
        "update-alternatives --list cuda",
        "shutdown -c",
        "usermod -aG sudo kim",
        "chmod 666 /dev/nvidia0",
        "nvidia-ctk config",
    ],
)
def test_what_looks_or_changes_another_thing_mends_nothing(typed: str) -> None:
    assert changed(typed) <= {"space"}


@pytest.mark.parametrize(
    ("typed", "part"),
    [
        ("vim /etc/modprobe.d/nvidia.conf", "node"),
        ("sudo rm /etc/modprobe.d/blacklist-nvidia.conf", "node"),
        ("echo 'options nvidia x=1' | sudo tee /etc/modprobe.d/nvidia.conf", "node"),
        ("sudo sh -c \"echo 'blacklist nouveau' >> /etc/modprobe.d/b.conf\"", "node"),
        ("echo 'blacklist nouveau' > /etc/modprobe.d/nouveau.conf", "node"),
        ("sed -i 's/quiet/quiet pci=realloc/' /etc/default/grub", "node"),
        ("rm /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.470.1", "node"),
        ("sudo reboot", "node"),
        ("init 6", "node"),
        ("sudo sh NVIDIA-Linux-x86_64-550.54.run --silent", "node"),
        ("nvidia-smi --gpu-reset -i 0", "node"),
        ("nvidia-smi -r", "node"),
        ("nvidia-smi mig -cgi 19 -C", "node"),
        ("nvidia-smi --ecc-config=0", "node"),
        ("apt install linux-headers-$(uname -r)", "node"),
        ("dnf install kernel-devel-matched", "node"),
        ("sudo dpkg -i ./nvidia-driver-550_550.54_amd64.deb", "node"),
        ("apt-get -y purge '*nvidia*'", "node"),
        ("apt upgrade", "node"),
        ("dnf update -y", "node"),
        ("dpkg --configure -a", "node"),
        ("systemctl restart nvidia-fabricmanager", "node"),
        ("usermod -aG video kim", "node"),
        ("dkms autoinstall", "node"),
        ("gpunode setup", "node"),
        ("helm upgrade gpu-operator nvidia/gpu-operator", "node"),
        ("apt install nvidia-container-toolkit", "containers"),
        ("containerd config default > /etc/containerd/config.toml", "containers"),
        ("nvidia-ctk runtime configure --runtime=docker", "containers"),
        ("systemctl restart docker", "containers"),
        ("vi docker-compose.yml", "containers"),
        ("docker compose up -d", "containers"),
        ("kubectl -n kube-system rollout restart ds nvidia-device-plugin-daemonset", "cluster"),
        ("apt-get update", "packages"),
        ("curl -o /etc/apt/sources.list.d/x.list https://example.org/x.list", "packages"),
        ("pip install torch==2.1.0+cu121", "programs"),
        ("python3 -m pip install --upgrade tensorflow", "programs"),
        ("echo 'export LD_LIBRARY_PATH=/usr/local/cuda/lib64' >> ~/.bashrc", "programs"),
        ("docker system prune -af", "space"),
    ],
)
def test_what_changes_a_part_of_the_stack_may_mend_that_part(typed: str, part: str) -> None:
    assert part in changed(typed)


@pytest.mark.parametrize(
    "typed", ["apt install nvidia-container-toolkit", "systemctl restart docker", "apt install jq"]
)
def test_what_stands_on_the_driver_does_not_mend_it(typed: str) -> None:
    assert not changed(typed) & mended_by(recognise("nvidia-smi"), "No devices were found")


def test_a_relative_name_is_of_the_folder_that_the_prompt_shows() -> None:
    assert "containers" in changed("vi config.toml", "root@n:/etc/containerd#")
    assert not changed("vi config.toml", "root@n:/home/kim/train#")


def test_what_a_gpu_says_through_a_program_no_program_mends() -> None:
    unready = "RuntimeError: CUDA error: system not yet initialized"
    assert mended_by(recognise("./train.sh"), unready) == {"node"}
    assert "programs" in mended_by(recognise("./train.sh"), "RuntimeError: no kernel image is available")
