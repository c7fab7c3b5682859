"""A silo of GDTS: its rows, their summaries, and the model that it trains.

What a silo summarises of its columns before training, with noise (GDTS, section II-B, step 1):

Categories: the noised count of each level. A level's name is a release of its own, since it occurs only where a row
holds it: with ``delta`` above zero, a name is released only if its noised count reaches a threshold that a single row
reaches with that probability at most. The remaining rows, by the noised row count, follow from that at no further cost:
they hold *rare* levels. That booleans are false and true is no secret, nor that a column can have missing values: these
need no threshold. Where rare or missing rows are not clearly more than noise in all silos together, merging drops them.
With ``delta`` 0 all names are released (the paper). Noise on the counts then protects nobody whose category is named
for them alone: no event is claimed, and the ledger shows the message as un-noised.

Numbers: an encoder fitted to the silo's own rows, without noise (the paper), with the shares of its levels in
thousandths; or a noised histogram between declared bounds, from which an encoder is made.

Shapes: N rows, B rows of a batch, E critic steps, W numbers of a model, L levels of a column.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from silosynth.algorithms.gdts import networks, protocol as gdts
from silosynth.algorithms.gdts.options import GDTSConfig
from silosynth.core.conversation import State, Turn, maybe, often, once
from silosynth.core.errors import DataError, ProtocolError
from silosynth.core.messages import Done, Message, from_state, to_state
from silosynth.core.schema import Column, ColumnSchema, Schema, Table, check_agreed, check_trainable
from silosynth.core.streams import Keystream, Streams
from silosynth.encoders.federated import Summary, is_number, of_bins, of_counts, summarise
from silosynth.encoders.table import ColumnParty, can_be_missing, check_bounds
from silosynth.models.ctgan import ConditionalGAN
from silosynth.models.encoded import encoded_rows
from silosynth.models.training import flatten, unflatten
from silosynth.privacy import masker, mechanisms
from silosynth.privacy.events import Event


class GDTSSilo(ColumnParty):
    """A silo's side of GDTS. It keeps no part of the trained model."""

    def _set_up(self) -> None:
        self.config: GDTSConfig
        self.agreed: Schema | None = None  # what all silos agreed on
        self.encoders: gdts.TakeEncoders | None = None
        self.model: networks.LocalModel | None = None
        self.masker = masker.Masker(self.seat)
        self.start = self.told = b""  # hashes of what it was told before training, and by now: see `gdts.Heard`
        self.rows, self.share = 0, 0.0  # as it said, with noise; and of all rows

    def _script(self, training: bool) -> tuple[Turn, ...]:
        if not training:  # the coordinator samples alone
            return ()
        begins = (*once(gdts.Describe, gdts.Summarise), *maybe(gdts.Summarise), *once(gdts.TakeEncoders))
        if self.config.mode == "md":
            return (*begins, *often(gdts.TeachCritic, gdts.SealCritic, gdts.TakeCritic, by="step"))
        secure = (gdts.AskBack, *masker.ASKS) * self.config.secure
        return (*begins, *often(gdts.TrainPart, gdts.SendWeights, *secure, by="part"))

    def _answer(self, ask: Message) -> Message:
        reply = self.masker.answer(ask)
        if reply is not None:
            return reply
        match ask:
            case gdts.Describe():
                return self._describe()
            case gdts.Summarise():
                return self._summarise(ask)
            case gdts.TakeEncoders():
                self._take_encoders(ask)
            case gdts.AskBack():
                pass
            case gdts.TrainPart():
                self._train_part(ask)
            case gdts.SendWeights():
                return self._send_weights(ask)
            case gdts.TeachCritic():
                return self._teach_critic(ask)
            case gdts.SealCritic():
                return self._seal_critic(ask)
            case gdts.TakeCritic():
                self._take_critic(ask)
            case _:
                raise ProtocolError("A GDTS silo does not understand this message", type(ask).__name__)
        return Done()

    # Columns.

    def _describe(self) -> gdts.Described:
        """Kinds of the modelled columns; why they were inferred stays here."""
        table, schema = self.columns.table, self.columns.schema
        check_trainable(table, schema)
        return gdts.Described(Schema(tuple(replace(schema[name], reason="", missing=()) for name in table.names)))

    def _summarise(self, ask: gdts.Summarise) -> Message:
        """Step 1: categories first, then numbers."""
        if self.agreed not in (None, ask.schema):
            raise ProtocolError("Silos agree on columns once", ask.schema.names, "Start a new run.")
        check_agreed(self.columns.schema.select(self.columns.table.names), ask.schema)
        part, summaries = ("categories", categories) if self.agreed is None else ("numbers", numbers)
        self.agreed, self.columns.table = ask.schema, self.columns.table.select(ask.schema.names)
        summarised = summaries(self.columns.table, ask.schema, self.config, self.streams.child("summaries", part))
        self.rows = self.rows or summarised.rows
        return summarised

    def _take_encoders(self, ask: gdts.TakeEncoders) -> None:
        """Step 3: encode, and make a model. Its first weights come with the first round."""
        self.encoders, self.columns.encoders = ask, ask.encoders
        self.start = self.told = masker.told(ask)
        self.share = self.rows / max(1, ask.rows)
        self._make_model(ask)

    def _make_model(self, ask: gdts.TakeEncoders) -> None:
        """A fresh one."""
        rows = encoded_rows(ask.encoders, self.columns.encode(), self.device)
        self.model = networks.make_model(self.config, rows, ask.rows, self.streams.child("model"), self.device)

    # Mode "fl".

    def _train_part(self, ask: gdts.TrainPart) -> None:
        if ask.anew and self.encoders is not None:
            self._make_model(self.encoders)
        config, model = self._training(ask)
        if config.secure:
            self.told = gdts.heard(self.start, self.told, ask)
        networks.put_weights(model.given(ask.part, config.rounds), ask.weights_W)
        model.train(ask.part, config.rounds)

    def _send_weights(self, ask: gdts.SendWeights) -> Message:
        config, model = self._training(ask)
        weights_W = networks.weights_of(model.networks(ask.part, config.rounds))
        if not config.secure:
            return gdts.LocalWeights(weights_W)
        networks.check_weight(config.weights, ask.weight, self.share, len(self.seat.roster))
        return self.masker.mask(weights_W, ask.weight, ask.part, self.told)

    # Mode "md".

    def _teach_critic(self, ask: gdts.TeachCritic) -> gdts.GeneratorGradient:
        """E steps of the critic, then the gradient that the generator needs."""
        gan = self._gan(ask)
        streams = self.streams.child("step", ask.step)
        draw, pick = streams.child("noise").torch(self.device), streams.child("rows").torch()
        for fake_BW, condition_B in zip(ask.fake_EBW, ask.condition_EB, strict=True):
            gan.critic_step(fake_BW.to(self.device), condition_B.long(), draw, pick)
        grad_fake_BW = gan.generator_gradient(ask.fake_BW.to(self.device), ask.condition_B.long().to(self.device), draw)
        return gdts.GeneratorGradient(grad_fake_BW.cpu())

    def _seal_critic(self, ask: gdts.SealCritic) -> gdts.SealedCritic:
        weights_W = flatten(self._gan(ask).critic.network.state_dict())
        return gdts.SealedCritic(self.seat.seal(ask.receiver, _context(ask.swap), weights_W.cpu().numpy().tobytes()))

    def _take_critic(self, ask: gdts.TakeCritic) -> None:
        """Another silo's critic goes on here; the moments of Adam stay where they are."""
        critic = self._gan(ask).critic.network
        content = self.seat.open(ask.envelope, _context(ask.swap))
        weights_W = torch.from_numpy(np.frombuffer(content[: len(content) // 4 * 4], np.float32).copy())
        critic.load_state_dict(unflatten(weights_W.to(self.device), critic.state_dict()))

    # State.

    def _state(self, training: bool) -> State:
        """Encoders, model and its training. Nothing once trained: the coordinator has the generator."""
        if not training:
            return {}
        return {
            "agreed": None if self.agreed is None else to_state(self.agreed),
            "prepared": None if self.encoders is None else to_state(self.encoders),
            "model": None if self.model is None else self.model.state(training=True),
            "masker": self.masker.state(),
            "told": self.told,
            "rows": self.rows,
        }

    def _restore(self, state: State) -> None:
        """What `trained` returned restores nothing."""
        if not state or not len(self.columns.table):
            return
        if state["agreed"] is not None:
            self.agreed = from_state(Schema, state["agreed"])
            self.columns.table = self.columns.table.select(self.agreed.names)
        self.rows = state["rows"]
        if state["prepared"] is None:
            return
        self.masker.restore(state["masker"])
        self._take_encoders(from_state(gdts.TakeEncoders, state["prepared"]))
        self.told = state["told"]
        if self.model is not None:
            self.model.restore(state["model"])

    def _training(self, ask: Message) -> tuple[GDTSConfig, networks.LocalModel]:
        if self.model is None:
            raise ProtocolError("A silo takes encoders before it trains", f"{type(ask).__name__} comes too early")
        return self.config, self.model

    def _gan(self, ask: Message) -> ConditionalGAN:
        config, model = self._training(ask)
        if not isinstance(model, ConditionalGAN):
            raise ProtocolError("Only a GAN has a critic", config.generator, "Set generator = 'ctgan'.")
        return model


def _context(swap: int) -> str:
    """What an envelope with a critic is bound to."""
    return f"gdts: critic of swap {swap}"


Summaries = gdts.NoisedSummaries | gdts.ExactSummaries


def categories(table: Table, schema: Schema, config: GDTSConfig, streams: Streams) -> Summaries:
    """Summaries of the columns that are not numbers, and the row count."""
    columns = [column for column in table.columns if not is_number(column, schema[column.name])]
    if math.isinf(config.epsilon):
        rng = streams.asked().numpy()
        exact = (summarise(column, schema[column.name], config.model.encoders, rng) for column in columns)
        return gdts.ExactSummaries(tuple(exact), len(table))
    noise = streams.noise()
    count, event = mechanisms.noised_counts(torch.tensor([len(table)]), config.epsilon, "the number of rows", noise)
    rows = max(1, int(count[0]))
    noised = [_noised_category(column, rows, config, noise) for column in columns]
    events = tuple(e for e in (event, *(event for _, event in noised)) if e is not None)
    return gdts.NoisedSummaries(tuple(summary for summary, _ in noised), rows, events if config.delta else ())


def numbers(table: Table, schema: Schema, config: GDTSConfig, streams: Streams) -> Summaries:
    """Summaries of the columns that are numbers."""
    columns = [column for column in table.columns if is_number(column, schema[column.name])]
    if config.numbers == "exact":
        rng = streams.asked().numpy()
        exact = (summarise(column, schema[column.name], config.model.encoders, rng) for column in columns)
        return gdts.ExactSummaries(tuple(exact), 0)
    check_bounds([(Table(tuple(columns)), schema)], remedy="")
    noise = streams.noise()
    noised = [_noised_number(column, schema[column.name], config, noise) for column in columns]
    return gdts.NoisedSummaries(
        tuple(s for s, _ in noised), 0, tuple(event for _, events in noised for event in events)
    )


def _noised_category(column: Column, rows: int, config: GDTSConfig, rng: Keystream) -> tuple[Summary, Event | None]:
    """Counts of levels, missing among them, in one release."""
    levels, absent = column.levels or (), len(column.levels or ())
    boolean = bool(levels) and all(isinstance(level, bool) for level in levels)
    codes = torch.where(column.missing, absent, column.values)
    counts, what = torch.bincount(codes, minlength=absent + 1), f"counts of the levels of column {column.name!r}"
    missing, _ = mechanisms.noised_counts(counts[absent:], config.epsilon, what, rng)
    # The levels' event covers the missing count too: a row is on one level, or missing.
    places: tuple[int, ...] = tuple(range(absent))
    if config.delta and not boolean:
        held = counts[:absent]
        places, counts, event = mechanisms.noised_levels(places, held, config.epsilon, config.delta, what, rng)
    else:
        counts, event = mechanisms.noised_counts(counts[:absent], config.epsilon, what, rng)
    count_of = {levels[place]: count for place, count in zip(places, counts.tolist(), strict=True)}
    if boolean:  # the more frequent value, and the other one where a row seems to hold it
        most = max(count_of, key=lambda level: count_of[level])
        count_of = {level: count for level, count in count_of.items() if count > 0 or level == most}
    optional = can_be_missing(column) if config.delta else bool(column.missing.any())
    n_missing = int(missing[0]) if optional else None
    n_rare = rows - sum(count_of.values()) - (n_missing or 0) if config.delta and not boolean else None
    return of_counts(column, count_of, n_rare, n_missing), event


def _noised_number(
    column: Column, schema: ColumnSchema, config: GDTSConfig, rng: Keystream
) -> tuple[Summary, list[Event]]:
    """A histogram between declared bounds, and the count of missing values."""
    if schema.low is None or schema.high is None or not schema.low < schema.high:
        raise DataError(
            f"A noised histogram of column {column.name!r} needs declared bounds, as those of its rows would leak",
            (schema.low, schema.high),
            f'Declare them in every silo, schema={{"{column.name}": {{"low": …, "high": …}}}}, or set numbers="exact".',
        )
    values, what = column.values[~column.missing].double(), f"a histogram of column {column.name!r}"
    counts, event = mechanisms.noised_histogram(values, schema.low, schema.high, config.bins, config.epsilon, what, rng)
    if not can_be_missing(column):
        return of_bins(column, schema, counts, None), [event] if event else []
    what = f"missing values of column {column.name!r}"
    count, second = mechanisms.noised_counts(column.missing.sum()[None], config.epsilon, what, rng)
    clear = 4 * math.sqrt(2) / config.epsilon  # about 4 standard deviations of the noise
    missing = int(count[0]) if int(count[0]) > clear else None
    return of_bins(column, schema, counts, missing), [e for e in (event, second) if e is not None]
