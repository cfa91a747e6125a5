"""A place of configurations for Hydra that holds `attn/a+b`: the variants a and b in turn."""

from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf


class PeriodSource(ConfigSource):
    """`attnlab://periods`, which conf/train.yaml adds to the places that Hydra searches."""

    @staticmethod
    def scheme() -> str:
        """The first part of its address."""
        return "attnlab"

    def load_config(self, config_path: str) -> ConfigResult:
        """The variants of attn/a+b, each composed under `attn.layers.<number>`."""
        names = config_path.removeprefix("attn/").removesuffix(".yaml").split("+")
        defaults = [{f"/attn@layers.{number}": name} for number, name in enumerate(names)]
        config = OmegaConf.create({"defaults": defaults, "layers": {}})
        return ConfigResult(self.provider, self.full_path(), config, header={"package": None})

    def is_config(self, config_path: str) -> bool:
        """Whether the path is a list of variants."""
        return config_path.startswith("attn/") and "+" in config_path

    def is_group(self, config_path: str) -> bool:
        """There are no groups."""
        return False

    def available(self) -> bool:
        """It needs nothing."""
        return True

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Nothing, since any variants can be combined."""
        return []
