"""Generation and serving, which hftune leaves to others."""

from hftune.arguments.names.row import OFF, alias, refused

_GENERATE = "nothing is generated but in RL; serve the result with vLLM or transformers"
_SERVE = "hftune serves nothing; start vLLM on the output folder"

ROWS = (
    alias("max_new_tokens", {"rl": "max_completion_length"}, "tokens of an answer", "64"),
    *(
        refused(name, does, _GENERATE, value, harmless=("1",) if name == "num_beams" else OFF)
        for name, does, value in (
            ("min_tokens", "shortest answer", "1"),
            ("frequency_penalty", "penalty of repetition", "0.1"),
            ("presence_penalty", "penalty of repetition", "0.1"),
            ("stream", "send tokens as they come", "True"),
            ("stream_options", "how", "{}"),
            ("num_beams", "beams", "2"),
            ("stop_words", "ends of an answer", "x"),
            ("logprobs", "return log-probabilities", "True"),
            ("top_logprobs", "how many", "5"),
            ("structured_outputs_regex", "form of answers", ".*"),
        )
    ),
    refused("enable_thinking", "think first", _GENERATE, harmless=()),  # the template decides, for False as well
    *(
        refused(name, does, _SERVE, value, harmless=OFF if name in ("use_warmup", "quantization") else ())
        for name, does, value in (
            ("host", "address", "0.0.0.0"),
            ("port", "port", "8188"),
            ("metrics_port", "port of figures", "8001"),
            ("engine_worker_queue_port", "port between processes", "8002"),
            ("max_num_seqs", "answers at once", "8"),
            ("use_warmup", "warm up", "1"),
            ("gpu_memory_utilization", "share of the memory", "0.9"),
            ("quantization", "quantised weights", "wint8"),
            ("kv_cache_ratio", "share of the cache", "0.75"),
        )
    ),
)
