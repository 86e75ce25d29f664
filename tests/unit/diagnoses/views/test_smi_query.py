from __future__ import annotations

import json

from gpunode.diagnoses.snapshot import Snapshot, take_snapshot
from gpunode.diagnoses.views import smi_query
from gpunode.facts import pasted

WHOLE = """
==============NVSMI LOG==============

Timestamp                                 : Mon Sep  9 11:02:33 2024
Driver Version                            : 535.129.03
CUDA Version                              : 12.2

Attached GPUs                             : 2
GPU 00000000:07:00.0
    Product Name                          : NVIDIA A100-SXM4-80GB
    MIG Mode
        Current                           : Disabled
        Pending                           : Enabled
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 4
        Pending                           : Yes
        Remapping Failure Occurred        : No
    Clocks Throttle Reasons
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
    Temperature
        GPU Current Temp                  : 31 C
GPU 00000000:0B:00.0
    Product Name                          : NVIDIA A100-SXM4-80GB
    Remapped Rows
        Pending                           : No
"""
XML = """<?xml version="1.0" ?>
<nvidia_smi_log>
\t<driver_version>535.129.03</driver_version>
\t<gpu id="00000000:07:00.0">
\t\t<remapped_rows>
\t\t\t<remapped_row_corr>0</remapped_row_corr>
\t\t\t<remapped_row_unc>4</remapped_row_unc>
\t\t\t<remapped_row_pending>Yes</remapped_row_pending>
\t\t</remapped_rows>
\t\t<clocks_event_reasons></clocks_event_reasons>
\t</gpu>
</nvidia_smi_log>
"""


def node(*pieces: tuple[str, str]) -> Snapshot:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report"))


def test_complete_smi_query_is_a_tree_per_gpu() -> None:
    first, second = smi_query.smi_gpus(node(("nvidia-smi -q", WHOLE)))
    assert (first.pci_address, second.pci_address) == ("0000:07:00.0", "0000:0b:00.0")
    assert first.value("Remapped Rows", "Pending") == "Yes"
    assert first.value("MIG Mode", "Pending") == "Enabled"
    assert first.value("Clocks Event Reasons", "HW Thermal Slowdown") == "Not Active"
    assert first.number("GPU Current Temp") == 31
    assert second.value("Remapped Rows", "Pending") == "No"
    assert first.find_row("Remapped Rows", "Pending").citation.line_number == 17  # type: ignore[union-attr]


def test_section_without_a_gpu_line_is_one_gpu_of_unknown_address() -> None:
    part = "    Remapped Rows\n        Uncorrectable Error : 8\n        Remapping Failure Occurred : Yes\n"
    for source in ("nvidia-smi -q -d ROW_REMAPPER", "nvidia-smi -q", "what he sent"):
        (gpu,) = smi_query.smi_gpus(node((source, part)))
        assert gpu.pci_address == ""
        assert gpu.number("Remapped Rows", "Uncorrectable Error") == 8


def test_omitted_section_heading_is_taken_from_the_option() -> None:
    (gpu,) = smi_query.smi_gpus(node(("nvidia-smi -q -d ROW_REMAPPER", "Pending : Yes\n")))
    assert smi_query.is_yes(gpu.value("Remapped Rows", "Pending"))


def test_smi_xml_is_parsed_to_the_same_tree() -> None:
    (gpu,) = smi_query.smi_gpus(node(("nvidia-smi -q -x", XML)))
    assert gpu.pci_address == "0000:07:00.0"
    assert gpu.number("Remapped Rows", "Uncorrectable Error") == 4
    assert gpu.value("Remapped Rows", "Pending") == "Yes"


def test_smi_csv_columns_are_parsed_to_the_same_tree() -> None:
    source = "nvidia-smi --query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure --format=csv"
    text = (
        "gpu_bus_id, remapped_rows.pending, remapped_rows.failure\n00000000:07:00.0, Yes, No\n00000000:0B:00.0, No, No"
    )
    first, second = smi_query.smi_gpus(node((source, text)))
    assert (first.pci_address, first.value("Remapped Rows", "Pending")) == ("0000:07:00.0", "Yes")
    assert second.value("Remapped Rows", "Remapping Failure Occurred") == "No"
    source += ",noheader"
    assert smi_query.smi_gpus(node((source, "00000000:07:00.0, Yes, No")))[0].value("Remapped Rows", "Pending") == "Yes"


def test_smi_query_header_is_no_gpu() -> None:
    assert smi_query.smi_gpus(node(("nvidia-smi -q", WHOLE.split("GPU 00000000:07")[0]))) == ()


def test_answer_of_a_container_is_not_the_nodes() -> None:
    assert smi_query.smi_gpus(node(("docker exec train nvidia-smi -q", WHOLE))) == ()
