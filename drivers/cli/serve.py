"""`kvcore serve`: the OpenAI-compatible router in front of inference engines."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from .extras import extra

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..gateway.config import GatewayConfig
    from ..gateway.config_file import Given
    from ..gateway.policy_desk import PolicyDesk
    from ..gateway.reload import Again

#: New objects that the collector waits for, and how many times that: with its own 700 it takes a seventh of the time.
GARBAGE = (10_000, 10, 10)


class ServeCommand(click.Command):
    """A command whose options are the settings of the gateway: one table for flags, environment and file."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The settings are imported when they are asked for, not when the program starts."""
        with extra("gateway", "kvcore serve"):
            return [*_own_options(), *_setting_options(), *super().get_params(ctx)]


@functools.cache
def _own_options() -> tuple[click.Option, ...]:
    return (
        click.Option(
            ["--config", "config_file"], metavar="FILE", envvar="KVCORE_SERVE_CONFIG", show_envvar=True,
            help="Configuration in YAML; --dump-config prints one."),
        click.Option(
            ["--worker", "workers"], metavar="URL", multiple=True, envvar="KVCORE_SERVE_WORKERS", show_envvar=True,
            help="A worker, http://HOST:PORT or https://HOST:PORT, perhaps with ,key=value behind it: ,max-requests=64."
            " Once for each; in the environment several, with spaces between them."),
        click.Option(
            ["--dump-config"], is_flag=True, help="Print the effective configuration, itself a file for --config, and "
            "where each value came from; serve nothing."),
    )


@functools.cache
def _setting_options() -> tuple[click.Option, ...]:
    from ..gateway.config import SETTINGS
    from ..gateway.settings import shown

    options = []
    for item in SETTINGS:
        default = shown(item.default)
        text = ",".join(default) if isinstance(default, list) else "none" if default is None else str(default)
        options.append(click.Option(
            [*item.flags, _parameter(item.key)], metavar=item.kind.metavar, envvar=item.variable, show_envvar=True,
            help=f"{item.help} [{text or 'none'}]"))
    return tuple(options)


def _parameter(key: str) -> str:
    """A key as the name of a parameter; section and name stay apart."""
    return key.replace(".", "__")


@click.command("serve", cls=ServeCommand, short_help="Route OpenAI requests to inference engines.")
@click.pass_context
def serve_command(
    ctx: click.Context, /, config_file: str | None, workers: tuple[str, ...], dump_config: bool, **texts: str | None,
) -> None:
    """Serve the OpenAI API in front of inference engines, each request by its policy class, cache and load.

    Every setting is a flag, an environment variable and a key of the configuration file; the first of these that gives
    it decides, then its default. SIGHUP reads the policy file and the workers again: what has changed is printed, and
    a file with a mistake changes nothing. SIGTERM lets running requests finish, for timeouts.drain_s.

    The exit status is 0 after SIGTERM or Ctrl-C, and 2 if something is wrong with the configuration.

    \b
    Examples:
      kvcore serve --worker http://127.0.0.1:8101 --worker http://127.0.0.1:8102
      kvcore serve --policy premium.yaml \\
          --worker http://127.0.0.1:8101,max-requests=4
      kvcore serve --config gateway.yaml --port 9000 --dump-config
    """
    with extra("gateway", "kvcore serve"):
        from ..gateway.policy_desk import PolicyDesk

        config, places = configure(ctx, config_file, workers, texts)
        desk = PolicyDesk(config)
        if dump_config:
            click.echo(dumped(config, places), nl=False)
            return
        run(desk, places, functools.partial(configure, ctx, config_file, workers, texts))


def configure(
    ctx: click.Context, config_file: str | None, workers: tuple[str, ...], texts: Mapping[str, str | None],
) -> tuple[GatewayConfig, dict[str, str]]:
    """The effective configuration, and where each value not a default came from. Raises InvalidGatewayConfig."""
    from ..gateway.config import SETTINGS, GatewayConfig, resolve
    from ..gateway.config_file import Given, InvalidGatewayConfig, read_file
    from ..gateway.policy_desk import read_text
    from ..gateway.upstreams import UpstreamSpec

    flags: dict[str, Given] = {}
    environment: dict[str, Given] = {}

    def note(parameter: str, key: str, flag: str, variable: str, value: Any) -> None:
        is_flag = ctx.get_parameter_source(parameter) is click.core.ParameterSource.COMMANDLINE
        place = flag if is_flag else variable
        try:
            (flags if is_flag else environment)[key] = Given(value(), place)
        except ValueError as error:
            raise InvalidGatewayConfig(place, "", str(error)) from error

    for item in SETTINGS:
        text = texts[_parameter(item.key)]
        if text is not None:
            note(_parameter(item.key), item.key, item.flags[0], item.variable, functools.partial(item.kind.read, text))
    if workers:
        note("workers", "workers", "--worker", "KVCORE_SERVE_WORKERS",
             lambda: tuple([UpstreamSpec.of_text(text) for text in workers]))
    file = {} if config_file is None else read_file(read_text(config_file), config_file, GatewayConfig)
    return resolve(flags, environment, file)


def dumped(config: GatewayConfig, places: Mapping[str, str]) -> str:
    """A configuration as a file that gives it, with the origin of each value behind it in comments."""
    import yaml

    from ..gateway.config import dump

    text: str = yaml.safe_dump(dump(config), sort_keys=False, allow_unicode=True)
    lines = [f"# {key}: {place}" for key, place in sorted(places.items())]
    return text + "".join([f"{line}\n" for line in ["# All else are defaults. Given:", *lines]] if lines else [])


def run(desk: PolicyDesk, places: Mapping[str, str], again: Again | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C; what happens is written to standard error. Raises OSError for its ports."""
    import gc
    import logging

    import trio

    from ..gateway.gateway import run as serve

    logging.basicConfig(
        level=desk.config.log_level.value.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # What is loaded by now stays: the collector need not walk through it again. Requests leave next to no cycles.
    gc.freeze()
    gc.set_threshold(*GARBAGE)
    try:
        trio.run(serve, desk, places, again)
    except* OSError as group:
        raise _only(group) from None


def _only(group: BaseExceptionGroup[OSError]) -> OSError:
    """The first of them: what the program then says in one line."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, OSError)
    return error
