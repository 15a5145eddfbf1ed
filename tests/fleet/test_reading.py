"""``FLEET.yaml``: whatever is wrong with it is one line that names the file and the place."""

from pathlib import Path

import pytest

from kvikk.errors import RequestError
from kvikk.fleet.reading import read_fleet


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a", "line 1: is a list; expected a mapping"),
        ("model: [", "line 1: not YAML"),
        ("model: x\nmodel: y", "line 2: model is there twice, first in line 1"),
        ("model: x\nmodell: y", "line 2: modell is not known"),
        ("model: x\n? {a: b}\n: 3", "line 2: is a mapping; expected a name"),
        ("model: x\nport: yes", "line 2: port is 'yes'; expected a number"),
        ("model: x\nreplicas: {min: 3, max: 1}", "line 2: replicas makes no sense"),
        ("model: x\nkeys: {operator: $NO_SUCH_NAME}", "line 2: keys.operator stands for"),
        ("model: !!python/object/apply:os.system [id]", "line 1: model is a list"),
        ("model: x\0y", "is not YAML"),
        ("[" * 3000, "is nested too deeply"),
    ],
)
def test_nonsense_is_one_line_that_says_where(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "FLEET.yaml"
    file.write_text(text)
    with pytest.raises(RequestError) as caught:
        read_fleet(file)
    message = str(caught.value)
    assert message.startswith(str(file))
    assert said in message
    assert "\n" not in message
