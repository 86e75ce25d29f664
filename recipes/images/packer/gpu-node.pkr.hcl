# A GPU node's image from a cloud image, built in a virtual machine without a GPU:
#   packer init .
#   packer build -var release=DIR -var image=debian-13-genericcloud-amd64.qcow2 -var checksum=file:SHA512SUMS -var ssh_key=KEY .
# Any other builder goes as well; the provisioners below are what makes the node.
packer {
  required_plugins {
    qemu = {
      source  = "github.com/hashicorp/qemu"
      version = "~> 1.1"
    }
  }
}

variable "release" {
  type        = string
  description = "The folder with gpunode.pyz and SHA256SUMS."
}

variable "image" {
  type        = string
  description = "The cloud image to start from."
}

variable "checksum" {
  type        = string
  description = "Its checksum, as packer takes it."
}

variable "ssh_key" {
  type        = string
  description = "A private key for packer alone, without a passphrase; KEY.pub beside it is let into the virtual machine."
}

variable "gpus" {
  type        = string
  default     = "10de:2330"
  description = "The PCI ids of the nodes' GPUs: lspci -nn -d 10de::0300; lspci -nn -d 10de::0302 on a node prints them."
}

variable "ssh_user" {
  type        = string
  default     = "debian"
  description = "The user of the cloud image: debian, ubuntu."
}

source "qemu" "node" {
  iso_url          = var.image
  iso_checksum     = var.checksum
  disk_image       = true
  disk_size        = "20G"
  format           = "qcow2"
  cd_label         = "cidata"
  cd_content = {
    "meta-data" = ""
    "user-data" = "#cloud-config\nssh_authorized_keys: [\"${trimspace(file("${var.ssh_key}.pub"))}\"]\n"
  }
  # DKMS builds the kernel module in it.
  memory               = 8192
  cpus                 = 4
  ssh_username         = var.ssh_user
  ssh_private_key_file = var.ssh_key
  ssh_timeout          = "15m"
  shutdown_command     = "sudo systemctl poweroff"
  headless             = true
}

build {
  sources = ["source.qemu.node"]

  provisioner "file" {
    sources     = ["${var.release}/gpunode.pyz", "${var.release}/SHA256SUMS", "${path.root}/../node.toml", "${path.root}/../generalise.sh"]
    destination = "/tmp/"
  }

  provisioner "shell" {
    execute_command = "sudo env {{ .Vars }} sh -eu {{ .Path }}"
    environment_vars = ["GPUS=${var.gpus}"]
    script          = "${path.root}/provision.sh"
  }
}
