"""The base of all typed settings."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A frozen group of settings; unknown keys, wrong types, NaN and infinity are errors."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        populate_by_name=True,
        allow_inf_nan=False,
    )


class _InJobs:
    """Marks a field whose texts must be names in the settings of a job; see `config.job_keys`."""

    def __repr__(self) -> str:
        return "IN_JOBS"


IN_JOBS = _InJobs()
