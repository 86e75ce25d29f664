from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode import builtin
from gpunode.errors import RecipeError
from gpunode.recipe import CudaToolkit, Driver, Expect, GpuDirect, Recipe, Repositories, RuntimeSettings, Toolkit
from gpunode.recipe import toml as recipe_toml
from gpunode.recipe.keys import known_keys
from gpunode.recipe.toml import line_of, parse, render

RECIPES = Path(__file__).parents[2] / "recipes"


def no_load(place: str) -> str:
    raise AssertionError(f"asked for {place}")


def refusal(text: str, file: str = "node.toml", load: Mapping[str, str] | None = None) -> RecipeError:
    with pytest.raises(RecipeError) as stopped:
        parse(text, file, (load or {}).__getitem__)
    return stopped.value


def toml(text: str) -> dict[str, Any]:
    """Return ``text`` as parsed by a TOML reader other than gpunode's."""
    import tomlkit

    return tomlkit.parse(text).unwrap()


def test_empty_recipe_has_the_defaults_and_the_file_name() -> None:
    assert parse("", "/etc/gpunode/rack-7.toml", no_load) == Recipe("rack-7")


def test_every_key_is_parsed() -> None:
    text = """
        schema = 1
        description = "rack 7"
        skip = ["kernel-headers"]
        driver = { version = "580.178.04", kernel_module_type = "open", scope = "media", persistence = false }
        toolkit.version = "1.18.1-1"
        [repositories]
        cuda = "https://mirror.example/cuda"
        toolkit = "file:/srv/toolkit"
        cuda_key_fingerprint = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
        cuda_key_file = "new.pub"
        toolkit_key_fingerprint = "0123456789ABCDEF0123456789ABCDEF01234567 BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB"
        [cuda]
        version = "12.9"
        parts = ["nvcc", "cublas"]
        [runtime]
        name = "docker"
        install = "never"
        set_as_default = true
        cgroup_driver = "systemd"
        cdi = true
        [gpudirect]
        rdma = "peermem"
        gds = true
        gdrcopy = true
        [expect]
        gpus = 8
        model = "H100"
        driver = "580"
        min_memory_mib = 81559
        ecc = true
    """
    assert parse(text, "x.toml", no_load) == Recipe(
        "x",
        "rack 7",
        ("kernel-headers",),
        Driver("580.178.04", "open", "media", persistence=False),
        Repositories(
            "https://mirror.example/cuda",
            "file:/srv/toolkit",
            "A" * 40,
            "new.pub",
            f"{'0123456789ABCDEF' * 2}01234567 {'B' * 40}",
        ),
        Toolkit("1.18.1-1"),
        CudaToolkit("12.9", ("nvcc", "cublas")),
        RuntimeSettings("docker", "never", set_as_default=True, cgroup_driver="systemd", cdi=True),
        GpuDirect("peermem", gds=True, gdrcopy=True),
        Expect(8, "H100", "580", 81559, ecc=True),
    )


def test_windows_line_ends_and_byte_order_mark_are_accepted() -> None:
    text = '\ufeff# made elsewhere\r\n[runtime]\r\nname = "docker"\r\n'
    assert parse(text, "x.toml", no_load) == Recipe("x", runtime=RuntimeSettings("docker"))
    assert refusal(text + "nam = 1\r\n").line == 4


class TestExtends:
    BASE = 'description = "base"\n[driver]\nversion = "lts"\nscope = "full"\n[runtime]\nname = "docker"\n'

    def test_child_overrides_its_base_key_by_key(self) -> None:
        child = 'extends = "base"\n[driver]\nversion = "580"\n'
        got = parse(child, "x.toml", {"base": self.BASE}.__getitem__)
        assert got == Recipe("x", driver=Driver("580", scope="full"), runtime=RuntimeSettings("docker"))

    def test_none_for_cuda_takes_the_parts_of_a_base_with_it(self) -> None:
        bases = {"base": '[cuda]\nversion = "12.9"\nparts = ["nvcc"]\n'}
        child = 'extends = "base"\n[cuda]\nversion = "none"\n'
        assert parse(child, "x.toml", bases.__getitem__) == Recipe("x")
        again = parse('extends = "child"\n[cuda]\nparts = ["nvcc"]', "x.toml", {**bases, "child": child}.__getitem__)
        assert again.cuda.parts == ("nvcc",)

    def test_relative_base_path_starts_at_the_file(self) -> None:
        files = {"/etc/gpunode/base.toml": 'extends = "../common/all.toml"', "/etc/common/all.toml": self.BASE}
        got = parse('extends = "./base.toml"', "/etc/gpunode/x.toml", files.__getitem__)
        assert got.driver.version == "lts"

    @pytest.mark.parametrize("extends", ["a.toml", "./a.toml", "../r/a.toml", "b.toml"])
    def test_cycle_is_named_in_its_order(self, extends: str) -> None:
        files = {"r/a.toml": f'extends = "{extends}"', "r/b.toml": '\nextends = "a.toml"'}
        error = refusal(files["r/a.toml"], "r/a.toml", files)
        assert "circle" in error.what
        assert error.what.endswith("r/a.toml → r/b.toml → r/a.toml" if "b" in extends else "r/a.toml → r/a.toml")
        assert (error.file, error.line) == (("r/b.toml", 2) if "b" in extends else ("r/a.toml", 1))

    def test_error_in_the_base_is_reported_there(self) -> None:
        error = refusal('extends = "base"', load={"base": self.BASE + "x = 1"})
        assert (error.file, error.line, error.key) == ("base", 7, "runtime.x")

    def test_unknown_shipped_recipe_is_guessed(self) -> None:
        with pytest.raises(RecipeError, match="did you mean containerd") as stopped:
            parse('\nextends = "conainerd"', "x.toml", builtin.load_recipe_text)
        assert stopped.value.line == 2

    def test_missing_base_file_is_reported_at_its_line(self, tmp_path: Path) -> None:
        with pytest.raises(RecipeError, match=r"x\.toml:1: cannot read .*gone\.toml.*: No such file") as stopped:
            parse('extends = "gone.toml"', str(tmp_path / "x.toml"), builtin.load_recipe_text)
        assert stopped.value.key == "extends"

    def test_invalid_base_path_is_reported(self) -> None:
        with pytest.raises(RecipeError, match="cannot read"):
            parse('extends = "a\\u0000.toml"', "x.toml", builtin.load_recipe_text)


FAULTS = [
    ('[driver]\nverion = "580"', 2, "driver.verion", "did you mean driver.version?"),
    ('[driver]\n\n  "version" = 580', 3, "driver.version", 'write it in quotes: "580"'),
    ("[driver]\nversion = 580.178", 2, "driver.version", "which is a number"),
    ('driver.version = "58"', 1, "driver.version", "which it cannot be"),
    ('[driver]\nversion = "580\\n"', 2, "driver.version", "which it cannot be"),
    ('[driver]\nversion = "latest"', 2, "driver.version", "which it cannot be"),
    ('[driver]\nversion = "prodution"', 2, "driver.version", 'did you mean "production"?'),
    ('driver = { kernel_module_type = "opne" }', 1, "driver.kernel_module_type", 'did you mean "open"?'),
    ('# runtime.name\n[ runtime ]\n# name\nname = "dokcer"', 4, "runtime.name", 'did you mean "docker"?'),
    ('[runtime]\nset_as_default = "yes"', 2, "runtime.set_as_default", "which is text"),
    ("[runtime]\nset_as_default = 1", 2, "runtime.set_as_default", "which is a number"),
    ("[expect]\ngpus = true", 2, "expect.gpus", "which is a truth value"),
    ("[expect]\ngpus = 0", 2, "expect.gpus", "too small"),
    ("[expect]\ngpus = -8", 2, "expect.gpus", "too small"),
    ("[expect]\nmodel = []", 2, "expect.model", "which is a list"),
    ('[toolkit]\nversion = "1.18"', 2, "toolkit.version", "which it cannot be"),
    ('[repositories]\ncuda = "https://x/ [trusted=yes]"', 2, "repositories.cuda", "which it cannot be"),
    ('[repositories]\ncuda = "http://x\\ndeb http://evil ./"', 2, "repositories.cuda", "which it cannot be"),
    *(
        (f'[repositories]\n{key} = "{address}"', 2, f"repositories.{key}", "which it cannot be")
        for key in ("cuda", "toolkit")
        for mark in (";", "$(id)", "|", "`id`", "&", "\\u0000", "\\u202e", "*", "!", "\u00e9")
        for address in (
            f"https://mirror.example/{mark}/debs",
            f"https://mirror{mark}.example/debs",
            f"file:/srv/{mark}",
        )
    ),
    ('[repositories]\ncuda_key_fingerprint = "abc"', 2, "repositories.cuda_key_fingerprint", "which it cannot be"),
    ("[runtime]\ndefault = true", 2, "runtime.default", "did you mean runtime.set_as_default?"),
    ("[expect]\nmemory_mib = 1", 2, "expect.memory_mib", "did you mean expect.min_memory_mib?"),
    ("schema = 2", 1, "schema", "a format unknown to this gpunode"),
    ("schema = true", 1, "schema", "a format unknown to this gpunode"),
    ('version = "580"', 1, "version", "did you mean driver.version?"),
    ("[runtme]\n", 1, "runtme", "did you mean runtime?"),
    ("\n[[driver]]\n", 2, "driver", "a list, where a table is expected"),
    ("driver = 580", 1, "driver", "a number, where a table is expected"),
    ("description = 2020-01-01", 1, "description", "a date or time"),
    ('"driver.version" = "580"', 1, "driver.version", "there is no key"),
    ('[driver]\n"a.b" = 1', 2, "driver.a.b", "there is no key"),
    ('skip = "all"', 1, "skip", "which is text"),
    ('\nskip = ["x", 1]', 2, "skip", "holds 1"),
    ('skip = ["../x"]', 1, "skip", 'holds "../x"'),
    ("upgrade = true", 1, "upgrade", "there is no key"),
    ('name = "x"', 1, "name", "there is no key"),
    ("[driver.version]\nx = 1", 1, "driver.version", "which is a table"),
]


@pytest.mark.parametrize(("text", "line", "key", "says"), FAULTS)
def test_error_names_line_key_and_allowed_values(text: str, line: int, key: str, says: str) -> None:
    error = refusal(text)
    assert (error.file, error.line, error.key) == ("node.toml", line, key)
    assert says in error.what
    assert error.allowed
    assert error.exit_code == 2


def test_unlike_key_of_the_same_table_is_not_proposed() -> None:
    """Every key of a table begins with the table's name."""
    assert refusal('[driver]\nflavour = "open"').what.endswith("there is no key driver.flavour")


def test_key_inside_a_multiline_string_is_ignored() -> None:
    text = 'description = """\n[driver]\nversion = 580\n"""\n[driver]\nversion = 580\n'
    assert refusal(text).line == 6


def test_header_inside_a_multiline_value_does_not_move_the_next_key() -> None:
    text = '[cuda]\nx = """\n[driver]\n"""\ny = [\n  [1],\n  [2]\n]\n[driver]\nz = 1\n'
    assert [line_of(text, path) for path in (("cuda", "x"), ("cuda", "y"), ("driver", "z"))] == [2, 5, 10]


class TestHostileRecipes:
    @pytest.mark.parametrize(
        ("text", "line"),
        [("[driver", 1), ("a = [", 1), ("\n\nx", 3), ('x = "\0"', 1), ("[driver]\n[driver]", 2), ("a = 1\na = 2", 2)],
    )
    def test_invalid_toml_is_reported_with_its_line(self, text: str, line: int) -> None:
        error = refusal(text)
        assert error.line == line
        assert "not TOML" in error.what

    @pytest.mark.parametrize(
        "text",
        [
            "x = " + "[" * 100_000,
            "a" + ".a" * 300_000 + " = 1",
            "[" + "a." * 300_000 + "a]",
            "x" * (1 << 21),
            "x = 1" + "0" * 9999,
        ],
    )
    def test_toml_bomb_is_refused(self, text: str) -> None:
        assert len(str(refusal(text))) < 200

    def test_long_key_or_value_is_shortened_in_the_message(self) -> None:
        assert len(refusal(f"{'k' * 10_000} = 1").what) < 200
        assert len(refusal(f'driver.version = "{"v" * 10_000}"').what) < 200

    def test_endless_chain_of_bases_is_refused(self) -> None:
        def load(place: str) -> str:
            return f'extends = "./{int(place[4:-5]) + 1:d}.toml"'.replace("./", "./next")

        with pytest.raises(RecipeError, match="more than 32 recipes extend one another") as stopped:
            parse('extends = "./next1.toml"', "node.toml", load)
        assert (stopped.value.key, stopped.value.line) == ("extends", 1)

    def test_remote_recipe_is_refused_without_its_password(self) -> None:
        with pytest.raises(RecipeError, match="only read from this machine") as stopped:
            parse('extends = "https://me:hunter2@example.org/x.toml"', "node.toml", no_load)
        assert "hunter2" not in str(stopped.value.as_dict())

    def test_many_lookalike_lines_take_little_time(self) -> None:
        text = 'description = """\n' + "driver.version = 1\n" * 50_000 + '"""\n[driver]\nversion = 1'
        assert refusal(text).key == "driver.version"

    @given(st.text(max_size=200))
    def test_any_text_is_a_recipe_or_a_recipe_error(self, text: str) -> None:
        try:
            parse(text, "node.toml", no_load)
        except RecipeError as error:
            assert error.file == "node.toml"  # noqa: PT017 -- either outcome is right
        except AssertionError as asked:
            assert "asked for" in str(asked)  # noqa: PT017 -- it extends something


numbers = st.from_regex(r"[0-9]{3}(\.[0-9]{2,3}){0,2}", fullmatch=True)
prose = st.text(st.characters(codec="utf-8"), max_size=30)
recipes = st.builds(
    Recipe,
    st.just("x"),
    prose,
    st.lists(st.sampled_from(["driver", "kernel-headers"]), max_size=2).map(tuple),
    st.builds(
        Driver,
        st.sampled_from(["auto", "production", "lts", "none"]) | numbers,
        st.sampled_from(["auto", "open", "proprietary"]),
        st.sampled_from(["compute", "media", "full"]),
        st.booleans(),
    ),
    st.builds(
        Repositories,
        st.sampled_from(["", "https://m.example/~a/@b/x%20"]),
        st.sampled_from(["", "file:/srv"]),
        st.sampled_from(["", "F" * 40]),
        st.sampled_from(["", "0" * 40]),
    ),
    st.builds(Toolkit, st.sampled_from(["auto", "none", "1.18.1-1", "1.19.0~rc.1-1"])),
    st.builds(
        CudaToolkit,
        st.sampled_from(["auto", "none", "12.9"]),
        st.lists(st.sampled_from(["nvcc", "cublas"]), max_size=2).map(tuple),
    ),
    st.builds(
        RuntimeSettings,
        st.sampled_from(["containerd", "docker", "none"]),
        st.sampled_from(["if-missing", "never"]),
        st.booleans(),
        st.sampled_from(["auto", "systemd"]),
        st.booleans(),
    ),
    st.builds(GpuDirect, st.sampled_from(["none", "dma-buf", "peermem"]), st.booleans(), st.booleans()),
    st.builds(
        Expect,
        st.none() | st.integers(1, 16),
        prose,
        st.just("") | numbers,
        st.none() | st.integers(1, 2**40),
        st.none() | st.booleans(),
    ),
)


@given(recipes)
def test_rendered_recipe_round_trips(wanted: Recipe) -> None:
    assert parse(render(wanted), "x.toml", no_load) == wanted


@given(recipes)
def test_rendered_recipe_has_only_changed_keys_with_their_docs(wanted: Recipe) -> None:
    text = render(wanted)
    said = toml(text)
    assert said.pop("schema") == 1
    for section, held in said.items():
        for name, value in held.items() if isinstance(held, dict) else ():
            (key,) = [key for key in known_keys() if key.path == f"{section}.{name}"]
            assert value != key.default
            assert f"# {key.spec.doc}\n{name} = " in text


@given(recipes)
def test_recipe_rendered_with_defaults_names_every_key(wanted: Recipe) -> None:
    text = render(wanted, defaults=True)
    assert parse(text, "x.toml", no_load) == wanted
    names = [key.name for key in known_keys() if "." in key.path and not key.path.startswith("kubernetes")]
    assert [name for name in names if f"\n{name} = " not in text and f"\n# {name} is not set" not in text] == []


def test_every_key_has_a_doc_and_allowed_values() -> None:
    paths = [key.path for key in known_keys()]
    assert len(set(paths)) == len(paths)
    for key in known_keys():
        assert key.spec.doc, key.path
        assert key.allowed_words, key.path
        assert "\n" not in key.spec.doc, key.path


def test_every_default_is_an_allowed_value() -> None:
    for key in known_keys():
        if key.default is not None and key.section:
            parse(f"{key.path} = {json.dumps(key.default)}", "x.toml", no_load)


def test_json_schema_agrees_with_the_parser() -> None:
    import jsonschema

    schema = json.loads((RECIPES / "gpunode.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    checker = jsonschema.Draft202012Validator(schema)
    for name in builtin.shipped_recipe_names():
        assert list(checker.iter_errors(toml(builtin.shipped_recipe_text(name)))) == []
    for text, _, _, _ in FAULTS:
        if "\\n" in text:
            continue  # Python's $, unlike the schema's, also matches before a last line end
        assert list(checker.iter_errors(toml(text))), text


def test_all_errors_of_a_file_are_reported_at_once() -> None:
    text = 'schema = 1\nextend = "containerd"\n[driver]\nversion = "LTS"\nflavour = 3\n[runtime]\ndefault = "yes"\n'
    with pytest.raises(RecipeError) as caught:
        parse(text, "t4.toml", lambda _: "")
    said = f"{caught.value.what}\n{caught.value.why}"
    for line in (2, 4, 5, 7):
        assert f"t4.toml:{line}: " in said
    assert 'did you mean "lts"?' in said
    assert "did you mean extends?" in said


def test_file_with_many_errors_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    read = recipe_toml._read_key

    def count(key: str) -> str:
        reads.append(key)
        return read(key)

    monkeypatch.setattr(recipe_toml, "_read_key", count)
    with pytest.raises(RecipeError) as caught:
        parse("\n".join(f"[table-{number}]" for number in range(500)), "many.toml", lambda _: "")
    assert len(reads) == 500
    assert "there may be more" in caught.value.why
    assert caught.value.why.count("there is no key") == 19
