"""Train one model, or a sweep of them with -m: python train.py attn=unscaled"""

import hydra
from omegaconf import DictConfig

from attnlab.training.main import arrange_arguments, one_sentence, train


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(cfg: DictConfig) -> float:
    return train(cfg)


if __name__ == "__main__":
    with one_sentence():
        arrange_arguments()
        main()
