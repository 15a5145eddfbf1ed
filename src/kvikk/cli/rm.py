"""``kvikk rm``: delete a model from this machine."""

from dataclasses import asdict

from kvikk.cli import options


def rm(model: options.Model, as_json: options.Json = False) -> None:
    """Delete a model that was fetched or made."""
    from kvikk.cli.models_report import model_line, print_json
    from kvikk.files.local_models import remove

    gone = remove(model)
    if as_json:
        print_json(asdict(gone))
    else:
        print(f"removed {model_line(gone)}")
