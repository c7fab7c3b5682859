"""The table of algorithms by name, and how options change a preset."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from silosynth.algorithms.central import options as central_options, protocol as central, silo as central_silo
from silosynth.algorithms.dplt import options as dplt_options, protocol as dplt, silo as dplt_silo
from silosynth.algorithms.gdts import options as gdts_options, protocol as gdts, silo as gdts_silo
from silosynth.algorithms.marginals import options as marginals_options, protocol as marginals, silo as marginals_silo
from silosynth.algorithms.silofuse import options as silofuse_options, protocol as silofuse, silo as silofuse_silo
from silosynth.algorithms.tabvfl import options as tabvfl_options, protocol as tabvfl, silo as tabvfl_silo
from silosynth.algorithms.vflgan import options as vflgan_options, protocol as vflgan, silo as vflgan_silo
from silosynth.algorithms.vtgan import options as vtgan_options, protocol as vtgan, silo as vtgan_silo
from silosynth.core.conversation import Conversation, Party, Roster
from silosynth.core.errors import ConfigError, MessageError, nearest
from silosynth.core.lost import Policy, chosen, under
from silosynth.core.messages import Struct
from silosynth.core.schema import Schema, Table, modelled_columns
from silosynth.core.streams import Streams
from silosynth.counting import appraise, judge
from silosynth.data.infer import cautions
from silosynth.encoders.column import EncoderConfig
from silosynth.encoders.combinations import determined_columns
from silosynth.privacy.events import Target
from silosynth.privacy.sealed import Seat

MakeParty = Callable[[Table, Schema, Seat, Streams, torch.device, Any], Party]
AlgorithmKind = Literal["generator", "representation", "counting"]


@dataclass(frozen=True)
class Algorithm:
    """One algorithm: its presets, its two sides, and how to sample from what they have learnt.

    Attributes:
        summary: one sentence for ``--help``.
        presets: configs by name.
        party: makes a silo's side from (table, schema, seat, streams, device, config).
        coordinate: the coordinator's side of training, or of counting: (roster, config, streams, device, state) →
            conversation; of a representation: (roster, config, labels, streams, device, state) → conversation.
        synthesise: its side of sampling: (roster, config, model, rows, streams, device) → conversation; None where
            nothing is synthesised.
        synthesise_given: the same where silos have been told conditions (`Party.restrict`) that nearly all rows are to
            fulfil, or with these as a last argument where silos keep no parts; None where rows are drawn as without
            conditions, and others are thrown away.
        kind: "generator" for `silosynth.fit`, "representation" for `silosynth.represent`, "counting" for jobs that
            train nothing and open tables, or figures of them.
        central: whether it needs a federation of one silo.
        horizontal: whether silos hold different rows of the same columns, not different columns of the same rows.
        grouped: whether silos with different rows may be groups of silos, each divided by columns; by the option
            ``silo_groups``.
        across_rows: the same algorithm for silos that hold different rows, if it is for both: see `of`. Its options say
            so (``horizontal``), since a silo must know before it answers.
        parts: whether silos keep parts of the model. If not, the coordinator has all of it, and no silo is needed once
            training has ended.
        ruled: whether the coordinator's side of training takes ``rules`` about columns of several silos.
        counts: whether silos count tables of their columns together to train, for which the coordinator deals random
            numbers that hide rows.
        private: configs by preset where options ask for differential privacy: training through noise takes other sizes.
            Presets that are not there keep theirs.
        policies: what can be done about silos that are lost in training; the first is the default. Empty if the
            algorithm has an option of its own for it.
    """

    summary: str
    presets: Mapping[str, Any]
    party: MakeParty
    coordinate: Callable[..., Conversation[dict[str, Any]]]
    synthesise: Callable[..., Conversation[dict[str, Table]]] | None = None
    synthesise_given: Callable[..., Conversation[dict[str, Table]]] | None = None
    kind: AlgorithmKind = "generator"
    central: bool = False
    horizontal: bool = False
    grouped: bool = False
    across_rows: Algorithm | None = None
    parts: bool = True
    ruled: bool = False
    counts: bool = False
    private: Mapping[str, Any] = field(default_factory=dict)
    policies: tuple[Policy, ...] = ("fail", "wait")

    def configure(self, preset: str, options: Mapping[str, Any] | None = None) -> Any:
        """The config of ``preset`` with ``options`` changed: nested mappings, or dotted names such as "latent.steps".

        Options that ask for differential privacy change the preset's sizes too: see `private`.

        Raises:
            ConfigError: unknown preset or option (names the nearest), one given twice, or a value of the wrong type.
        """
        if preset not in self.presets:
            raise ConfigError("There is no such preset", preset, nearest(preset, self.presets))
        tree = _nested(options or {})
        if self.across_rows is not None and (tree.get("horizontal") is True or tree.get("silo_groups")):
            return self.across_rows.configure(preset, tree)
        presets = self.private if preset in self.private and _asks_for_privacy(tree) else self.presets
        return _changed(presets[preset], tree, "")

    def divided(self, horizontal: bool) -> Algorithm:
        """This algorithm for silos that hold different rows, or different columns; itself if it is for one of both."""
        return self.across_rows if horizontal and self.across_rows is not None else self

    def of(self, config: Any) -> Algorithm:
        """This algorithm as its options say that silos hold the table."""
        return self.divided(bool(getattr(config, "horizontal", False)))

    def check_config(self, config: Struct) -> None:
        """Refuse another algorithm's options.

        Raises:
            ConfigError: names their class.
        """
        kinds = {type(preset) for preset in self.presets.values()}
        if type(config) not in kinds:
            known = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise ConfigError("An algorithm takes options of its own", type(config).__name__, f"Give {known}.")

    def under(self, missing: str | None = None) -> Callable[..., Conversation[dict[str, Any]]]:
        """`coordinate`, handling lost silos by the policy ``missing``; None is the algorithm's default.

        Raises:
            ConfigError: the algorithm does not support it; names those that it does.
        """
        policy = chosen(missing, self.policies)
        return lambda *args, **kwargs: under(policy, self.coordinate(*args, **kwargs))

    def cautions(self, config: Any, schema: Schema, table: Table) -> list[str]:
        """What the owner of a table should know before training: of its columns, and of what synthetic rows will break.

        Dependencies that `encoders.combinations` would keep are named where this algorithm, or ``dp``, cannot.
        """
        options = next(_encoder_options(config), EncoderConfig())
        private = getattr(config, "dp", Target()).private
        own = self.kind == "generator" and options.pool_rare and not (self.horizontal or private)
        most = options.most_categories if own else 0
        said = cautions(schema, table, options.min_count, options.pool_rare, most)
        if self.kind != "generator" or not (self.horizontal or private):
            return said
        rules = determined_columns(modelled_columns(table, schema), schema, EncoderConfig())
        if rules:
            pairs = ", ".join(f"{rule.keys.name} → {rule.values.name}" for rule in rules)
            why = "under differential privacy" if private else "with silos that hold different rows"
            said.append(
                f"In all rows these columns determine others: {pairs}. Nothing is done about that {why}, so some "
                "synthetic rows will not agree; the report counts them. Declare which combinations there are under "
                "[[rules]], if they are public: silosynth inspect TABLE proposes what to write"
            )
        return said

    def pools_below(self, config: Any) -> int:
        """Levels that fewer rows hold are pooled for certain; 0 where none are, or where it hangs on noise."""
        options = next(_encoder_options(config), None)
        if options is None or getattr(config, "dp", Target()).private:
            return 0
        return options.min_count if options.pool_rare else 0

    def check(self, roster: Roster, horizontal: bool, grouped: bool = False) -> None:
        """Refuse a federation of several silos for a central baseline, or one that is divided in another way.

        Raises:
            ConfigError: names the algorithms that fit.
        """
        if grouped and not self.grouped:
            rule = "This algorithm is not for groups of silos, each divided by columns and of other rows"
            fit = [name for name, one in ALGORITHMS.items() if one.divided(True).grouped]
            raise ConfigError(rule, f"groups of {', '.join(roster)}", f"For these there are: {', '.join(fit)}.")
        held = f"{'rows' if horizontal else 'columns'} in {', '.join(roster)}"
        if self.central and (len(roster) != 1 or horizontal):
            raise ConfigError(
                "This baseline sees the whole table in one place and needs a federation of one silo",
                held,
                "Pass federation.central().",
            )
        if self.horizontal is not horizontal:
            own, way = (
                ("rows of the same columns", "rows") if self.horizontal else ("columns of the same rows", "silos")
            )
            other, dealt = ("rows", "columns") if horizontal else ("columns", "rows")
            remedy = f"Deal out {dealt}: simulate(frame, {way}={{…}}). For different {other}, there are: "
            rule = f"This algorithm is for silos that hold different {own}"
            raise ConfigError(rule, held, f"{remedy}{fitting(horizontal)}.")


def _encoder_options(config: Any) -> Iterator[EncoderConfig]:
    if isinstance(config, EncoderConfig):
        yield config
    elif dataclasses.is_dataclass(config):
        for one in dataclasses.fields(config):
            yield from _encoder_options(getattr(config, one.name))


def fewest_rows(config: Any) -> int:
    """How many rows stand at least behind a level's name and the end of a range, by all options of an algorithm."""
    if not dataclasses.is_dataclass(config):
        return 1
    own = [fewest_rows(getattr(config, one.name)) for one in dataclasses.fields(config)]
    return max(own, default=1) if (least := getattr(config, "min_count", None)) is None else int(least)


def _central(name: str, summary: str) -> Algorithm:
    """A baseline that sees all columns; they share one conversation."""
    presets, silo = central_options.PRESETS[name], central_silo.CentralSilo
    return Algorithm(summary, presets, silo, central.coordinate, central.synthesise, central=True)


def _across_rows(presets: Mapping[str, marginals_options.MarginalsConfig]) -> Algorithm:
    """Marginals of silos that hold different rows, by sums over all silos; one conversation for all algorithms."""
    summary, made = "the same by sums over silos that hold different rows", marginals_options.across_rows(presets)
    return Algorithm(
        summary, made, marginals_silo.RowsSilo, marginals.coordinate_rows, marginals.synthesise_rows,
        marginals.synthesise_rows_given, horizontal=True, grouped=True, parts=False,
    )  # fmt: skip


ALGORITHMS: Mapping[str, Algorithm] = {
    "silofuse": Algorithm(
        "autoencoders in the silos, one latent generative model at the coordinator; one round (ICDE 2024)",
        silofuse_options.PRESETS, silofuse_silo.SiloFuseSilo, silofuse.coordinate, silofuse.synthesise,
        silofuse.synthesise_given, private=silofuse_options.PRIVATE,
    ),
    "latentdiff": Algorithm(
        "SiloFuse's central baseline: the same with all columns in one silo",
        silofuse_options.PRESETS, silofuse_silo.SiloFuseSilo, silofuse.coordinate, silofuse.synthesise,
        silofuse.synthesise_given, central=True, private=silofuse_options.PRIVATE,
    ),
    "silofuse-joint": Algorithm(
        "SiloFuse with latents learnt jointly, as in TabVFL: each reveals columns of all silos; thousands of rounds",
        silofuse_options.JOINT_PRESETS, silofuse_silo.JointSilo, silofuse.coordinate_joint, silofuse.synthesise_joint,
    ),
    "e2edistr": Algorithm(
        "SiloFuse's baseline: autoencoders and diffusion trained jointly across silos, iteration by iteration",
        silofuse_options.END_TO_END_PRESETS, silofuse_silo.EndToEndSilo,
        silofuse.coordinate_end_to_end, silofuse.synthesise,
    ),
    "e2e": Algorithm(
        "the same with all columns in one silo",
        silofuse_options.END_TO_END_PRESETS, silofuse_silo.EndToEndSilo,
        silofuse.coordinate_end_to_end, silofuse.synthesise, central=True,
    ),
    "vtgan": Algorithm(
        "a conditional GAN split between the coordinator and the silos; thousands of rounds (VT-GAN)",
        vtgan_options.PRESETS, vtgan_silo.VTGANSilo, vtgan.coordinate, vtgan.synthesise,
        private=vtgan_options.PRIVATE,
    ),
    "vflgan": Algorithm(
        "local critics and a shared one over columns in several silos; thousands of steps (VFLGAN, 2024)",
        vflgan_options.VFLGAN, vflgan_silo.VFLGANSilo, vflgan.coordinate, vflgan.synthesise,
        private=vflgan_options.PRIVATE,
    ),
    "vflgan-base": Algorithm(
        "VFLGAN's ablation: the shared critic alone judges",
        vflgan_options.BASE, vflgan_silo.VFLGANSilo, vflgan.coordinate, vflgan.synthesise,
        private=vflgan_options.PRIVATE_BASE,
    ),
    "vertigan": Algorithm(
        "VFLGAN's baseline: a GAN in each silo, whose generators share their first layers (VertiGAN, 2023)",
        vflgan_options.VERTIGAN, vflgan_silo.VertiGANSilo, vflgan.coordinate_vertigan, vflgan.synthesise,
        private=vflgan_options.PRIVATE_VERTIGAN,
    ),
    "wgan-gp": Algorithm(
        "VFLGAN's central baseline: the GAN of a VertiGAN silo, with all columns in one silo (WGAN-GP, 2017)",
        vflgan_options.VERTIGAN, vflgan_silo.VertiGANSilo, vflgan.coordinate_vertigan, vflgan.synthesise, central=True,
        private=vflgan_options.PRIVATE_VERTIGAN,
    ),
    "gdts": Algorithm(
        "one model for silos that hold different rows: GANs or diffusion averaged, or a generator with a critic in "
        "each silo (CLOUD 2023)",
        gdts_options.PRESETS, gdts_silo.GDTSSilo, gdts.coordinate, gdts.synthesise, horizontal=True, parts=False,
        policies=("omit", "wait", "fail"),
    ),
    "dplt": Algorithm(
        "a latent tree over discretised columns, learnt from noised tables of two attributes (TDSC 2021)",
        dplt_options.PRESETS, dplt_silo.DPLTSilo, dplt.coordinate, dplt.synthesise,
    ),
    "mst": Algorithm(
        "a tree of tables of two columns, which silos count together and noise (MST, 2021)",
        marginals_options.MST, marginals_silo.MarginalsSilo, marginals.coordinate, marginals.synthesise,
        marginals.synthesise_given, ruled=True, counts=True,
        across_rows=_across_rows(marginals_options.MST),
    ),
    "aim": Algorithm(
        "MST with more tables, chosen round by round where the model so far is furthest from the silos (AIM, 2022)",
        marginals_options.AIM, marginals_silo.MarginalsSilo, marginals.coordinate, marginals.synthesise,
        marginals.synthesise_given, ruled=True, counts=True,
        across_rows=_across_rows(marginals_options.AIM),
    ),
    "tabvfl": Algorithm(
        "one latent vector per row, learnt across silos, and a label predicted from it (TabVFL, 2023)",
        tabvfl_options.PRESETS, tabvfl_silo.TabVFLSilo, tabvfl.coordinate, kind="representation", policies=(),
    ),
    "judge": Algorithm(
        "tables of pairs of columns that silos count together, for a report on a synthetic table",
        {"balanced": judge.JudgeConfig()}, judge.JudgingSilo, judge.coordinate, kind="counting", parts=False,
        policies=("fail", "wait"),
    ),
    "appraise": Algorithm(
        "noised tables of a few groups of silos' columns, which say what these are worth to each other",
        {"balanced": appraise.AppraiseConfig()}, appraise.AppraisingSilo, appraise.coordinate, kind="counting",
        parts=False, policies=("fail", "wait"),
    ),
    "ctgan": _central("ctgan", "a conditional GAN of linear layers over all columns in one silo (CTGAN, 2019)"),
    "ctabgan": _central("ctabgan", "a conditional GAN of convolutions over all columns in one silo (CTAB-GAN, 2021)"),
    "tvae": _central("tvae", "a variational autoencoder of all columns in one silo (TVAE, 2019)"),
    "tabddpm": _central("tabddpm", "diffusion of whole rows, all columns in one silo (TabDDPM, 2022)"),
}  # fmt: skip


_USE: Mapping[AlgorithmKind, str] = {
    "generator": 'Use silosynth.fit("{}", …).',
    "representation": 'Use silosynth.represent("{}", …).',
    "counting": "Use silosynth.{}(…), or in a federation the command of this name.",
}


def names(kind: AlgorithmKind | None = None) -> list[str]:
    """The names of the algorithms of this kind; of all without one."""
    return [name for name, entry in ALGORITHMS.items() if kind in (None, entry.kind)]


def fitting(horizontal: bool) -> str:
    """The names of the generators for silos with different rows of the same columns; otherwise of the others."""
    entries = {name: ALGORITHMS[name] for name in names("generator")}.items()
    fit = (name for name, one in entries if one.divided(horizontal).horizontal is horizontal and not one.central)
    return ", ".join(fit) or "none"


def algorithm(name: object, kind: AlgorithmKind | None = "generator") -> Algorithm:
    """The algorithm called ``name``, of this kind; of any kind if that is None.

    Raises:
        ConfigError: there is none (names the nearest), or it is of another kind (names the function to use).
    """
    if not isinstance(name, str):
        rule = "The algorithm is the first argument, by name, and the federation the second"
        raise ConfigError(rule, type(name).__name__, 'Write fit("silofuse", federation).')
    entry = ALGORITHMS.get(name)
    if entry is None:
        what = "representation" if kind == "representation" else "algorithm"
        raise ConfigError(f"There is no such {what}", name, nearest(name, names(kind)))
    if kind not in (None, entry.kind):
        raise ConfigError(f"This takes a {kind}; the algorithm is a {entry.kind}", name, _USE[entry.kind].format(name))
    return entry


def of_config(name: str, config: Any, kind: AlgorithmKind | None = "generator") -> Algorithm:
    """The algorithm called ``name``, as its options say that silos hold the table: see `algorithm`, `Algorithm.of`."""
    return algorithm(name, kind).of(config)


def partitioned(config: Any) -> bool:
    """Whether synthetic columns stay in their silos, by the options of a generator."""
    return getattr(config, "synthesis", "shared") == "partitioned"


def public(config: Any) -> bool:
    """Whether silos hand over what their columns are drawn from, by the options of a generator."""
    return getattr(config, "synthesis", "shared") == "public"


def _asks_for_privacy(tree: Mapping[str, Any]) -> bool:
    """Whether options give a finite epsilon for a whole training."""
    dp = tree.get("dp")
    epsilon = dp.epsilon if isinstance(dp, Target) else dp.get("epsilon") if isinstance(dp, Mapping) else None
    return isinstance(epsilon, int | float) and epsilon < math.inf


def _nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a tree, whether they are given nested, dotted or both."""
    tree: dict[str, Any] = {}
    for path, value in _leaves(options):
        branch: Any = tree
        for name in path[:-1]:
            branch = branch.setdefault(name, {}) if isinstance(branch, dict) else None
        if not isinstance(branch, dict) or path[-1] in branch:
            raise ConfigError(
                "An option is either one value or a group of options, and is given once",
                ".".join(path),
                "Keep one of the places that give it.",
            )
        branch[path[-1]] = value
    return tree


def _leaves(options: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value with its path; an empty mapping yields nothing."""
    for name, value in options.items():
        path = (*above, *name.split("."))
        if isinstance(value, Mapping):
            yield from _leaves(value, path)
        else:
            yield path, value


def _like(old: Any, value: Any) -> Any:
    """Lists become tuples, and integers become floats where the old value is a float: 0 for 0.0."""
    if isinstance(value, list | tuple):
        olds = old if isinstance(old, tuple) and len(old) == len(value) else (None,) * len(value)
        return tuple(_like(before, part) for before, part in zip(olds, value, strict=True))
    return float(value) if isinstance(old, float) and type(value) is int and abs(value) < 2**53 else value


def _changed(config: Struct, options: Mapping[str, Any], where: str) -> Struct:
    known = [field.name for field in dataclasses.fields(config)]
    changes: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            raise ConfigError("There is no such option", where + name, nearest(name, known))
        before = getattr(config, name)
        if isinstance(before, Target) and isinstance(value, str):
            value = {"mechanism": value}
        if isinstance(before, Struct) and isinstance(value, Mapping):
            value = _changed(before, value, f"{where}{name}.")
        changes[name] = _like(before, value)
    try:
        return dataclasses.replace(config, **changes)
    except MessageError as error:
        rule = error.rule.removeprefix(f"{type(config).__name__}.")
        raise ConfigError(
            f"Option {where}{rule}", changes.get(rule.split()[0]), "Give a value of that type."
        ) from error
    except ConfigError as error:
        if where:
            error.prefix(f"Options of {where[:-1]}")
        raise
