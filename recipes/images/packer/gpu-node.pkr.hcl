# A GPU node's image from a cloud image, built in a virtual machine without a GPU:
#   packer build -var release=DIR -var image=debian-13-genericcloud-amd64.qcow2 -var checksum=file:SHA512SUMS .
# Any other builder goes as well; the provisioners below are what makes the node.
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

variable "gpus" {
  type        = string
  default     = "10de:2330"
  description = "The PCI ids of the nodes' GPUs: lspci -nn -d 10de: on a node prints them."
}

source "qemu" "node" {
  iso_url          = var.image
  iso_checksum     = var.checksum
  disk_image       = true
  disk_size        = "20G"
  format           = "qcow2"
  cd_files         = ["${path.root}/seed/*"]
  cd_label         = "cidata"
  ssh_username     = "debian"
  ssh_timeout      = "15m"
  shutdown_command = "sudo systemctl poweroff"
  headless         = true
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
