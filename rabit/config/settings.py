"""Settings: values of settings, as classes declare them; the base of Config.

It is what a frozen dataclass would be, but for the time that one takes to be made: every rank of a job
spends it at its start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from rabit.config.setting import Setting

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """For type checkers alone; `typing` has it from Python 3.11 on."""
        return lambda kind: kind


__all__ = ["Settings"]


@dataclass_transform(frozen_default=True)
class Settings:
    """Fields that are settings, those of its bases first.  Equal if all of them are; they cannot be changed.

    A class declares settings of one group of the reference.
    extra: fields that are not settings.
    """

    extra: ClassVar[tuple[str, ...]] = ()
    _described: ClassVar[tuple[Setting, ...]] = ()

    def __init_subclass__(cls, group: str = "") -> None:
        bases = (base for base in reversed(cls.__bases__) if issubclass(base, Settings))
        inherited = (setting for base in bases for setting in base.settings())
        own = (
            var._replace(name=name, group=group)
            for name, var in vars(cls).items()
            if isinstance(var, Setting)
        )
        cls._described = (*inherited, *own)

    def __init__(self, **values: Any) -> None:
        fields = {setting.name: setting.default for setting in self.settings()}
        for name in values:
            if name not in fields and name not in self.extra:
                raise TypeError(
                    f"{type(self).__name__}.__init__() got an unexpected keyword argument {name!r}"
                )
        vars(self).update(fields, **values)
        self._check()

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        """The description of every field, in order."""
        return cls._described

    def _check(self) -> None:
        """Raises InvalidArgument for values that are not valid."""

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, setting.name) for setting in self.settings())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        pairs = zip(self.settings(), self._values(), strict=True)
        shown = (f"{pair.name}={value!r}" for pair, value in pairs if pair.kind != "secret")
        return f"{type(self).__name__}({', '.join(shown)})"

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot delete field {name!r}")
