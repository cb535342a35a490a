"""The paper's figures and its table, one module each, by name."""

from fedsgm.paper import (
    cartpole_compression,
    cartpole_main,
    cartpole_participation,
    fair_adult,
    np_beta,
    np_compression,
    np_local_steps,
    np_participation,
    np_penalty,
    np_progress,
    np_skewness,
)

STUDIES = {
    module.STUDY.name: module.STUDY
    for module in (
        np_progress,
        np_local_steps,
        np_participation,
        np_compression,
        np_beta,
        np_penalty,
        np_skewness,
        fair_adult,
        cartpole_main,
        cartpole_participation,
        cartpole_compression,
    )
}
