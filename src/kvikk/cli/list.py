"""``kvikk list``: the models on this machine."""

from dataclasses import asdict

from kvikk.cli import options


def list_models(as_json: options.Json = False) -> None:
    """Models that can be served with nothing to be fetched."""
    from kvikk.cli.models_report import model_table, print_json
    from kvikk.files.local_models import local_models

    found = local_models()
    if as_json:
        print_json({"models": [asdict(model) for model in found]})
    elif found:
        print(model_table(found))
