"""``kvikk pull``: have a model on this machine before it is served."""

from dataclasses import asdict

from kvikk.cli import options


def pull(model: options.Model, as_json: options.Json = False) -> None:
    """Fetch a model from the hub, or make one that is made here."""
    from kvikk.cli.models_report import model_line, print_json
    from kvikk.files.local_models import pull

    found = pull(model)
    if as_json:
        print_json(asdict(found))
    else:
        print(model_line(found))
