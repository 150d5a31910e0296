"""Records, and how they are mixed."""

from hftune.arguments.names.row import alias, no_effect, refused, translated, works
from hftune.arguments.names.translators import data

_FORMATS = "formats are recognised from the records"

ROWS = (
    works("train_file_dir", "training records", "d"),
    works("validation_file_dir", "held-out records", "d"),
    alias("train_dataset_path", "train_file_dir", "training records", "d"),
    alias("eval_dataset_path", "validation_file_dir", "held-out records", "d"),
    alias("dataset", "train_file_dir", "training records; PATH#500 takes 500", "d#500"),
    alias("val_dataset", "validation_file_dir", "held-out records", "d"),
    works("dataset_name", "training records from the Hub", "owner/name"),
    refused("dataset_config_name", "configuration of that data set", "write --dataset_name NAME:CONFIG", "main"),
    refused("dataset_config", "configuration of that data set", "write --dataset_name NAME:CONFIG", "main"),
    refused("subset_name", "configuration of that data set", "write --dataset_name NAME:CONFIG", "main"),
    refused("dataset_splits", "split of that data set", "write --dataset_name NAME@SPLIT", "test", harmless=("train",)),
    refused(
        "dataset_train_split", "split of that data set", "write --dataset_name NAME@SPLIT", "x", harmless=("train",)
    ),
    refused("dataset_test_split", "split held out", "write --validation_file_dir NAME@SPLIT", "validation"),
    works("train_dataset_prob", "weights of the sources", "1"),
    translated(
        "interleave_prob",
        "train_dataset_prob, mix_strategy",
        "weights of the sources",
        "0.5 0.5",
        {"train_dataset_prob": "0.5,0.5", "mix_strategy": "under"},
        data.interleaved,
    ),
    translated(
        "stopping_strategy",
        "mix_strategy",
        "when mixing stops",
        "all_exhausted --interleave_prob 1",
        {"train_dataset_prob": "1", "mix_strategy": "over"},
        data.interleaved,
    ),
    translated(
        "mix_strategy", "mix_strategy", "how sources are mixed", "random", {"mix_strategy": "over"}, data.mix_strategy
    ),
    works("num_samples_each_epoch", "records of a virtual epoch", "6000000"),
    works("datasets", "folders of tokenised records", "a"),
    works("weights", "weights of those folders", "1"),
    works("logical_shards", "pieces that the loader visits in random order", "1024"),
    refused(
        "data_path", "folder above the data sets", "give each of --train_file_dir (--datasets) with its folder", "p"
    ),
    refused("use_dummy_dataset", "generated records", "use --dummy_data 10000, the number of generated records"),
    refused(
        "file_type",
        "format of tokenised files",
        "folders of `hftune tokenize` or save_to_disk are read",
        "parquet",
        harmless=("arrow",),
    ),
    refused(
        "col_name",
        "column of the tokens",
        "name it input_ids, or use --columns",
        "ids",
        harmless=("input_ids", "tokens"),
    ),
    *(
        refused(
            name,
            does,
            "tokens of a tokenised folder are taken as they are; tokenise with `hftune tokenize`",
            "2",
            harmless=("none", "null", ""),
        )
        for name, does in {
            "bos_token": "token before documents",
            "eos_token": "token behind documents",
            "bol_token": "token before lines",
            "eol_token": "token behind lines",
            "sep_token": "token between documents",
            "strip_tokens": "tokens to remove",
        }.items()
    ),
    refused("cached_dataset", "tokenised records", "use --tokenized_dir with a folder of `hftune tokenize`", "c"),
    refused("cached_val_dataset", "tokenised records held out", "use --validation_tokenized_dir", "c"),
    refused("offline_dataset_path", "tokenised records", "use --tokenized_dir with a folder of `hftune tokenize`", "c"),
    refused("input_dir", "tokenised corpus with weights", "use --tokenized_dir, --datasets and --weights", "1.0 c"),
    refused("split", "shares of training and evaluation", "use --validation_split_percentage", "950,50"),
    refused("data_filelist", "list of data files", "use --train_file_dir", "f.txt"),
    refused("data_weights", "weights of those files", "use --train_dataset_prob", "1,2"),
    refused(
        "custom_dataset_info", "registered data sets", "give --train_file_dir and, where needed, --columns", "f.json"
    ),
    no_effect("dataset_type", "how records are read", _FORMATS, "iterable", harmless=()),
    no_effect("train_dataset_type", "format", _FORMATS, "erniekit"),
    no_effect("eval_dataset_type", "format", _FORMATS, "erniekit"),
    no_effect("eval_dataset_prob", "weights of held-out sources", "all held-out records are used", "1.0"),
    no_effect("corpus_name", "name of a corpus", _FORMATS, "c"),
    works("columns", "columns under other names; hftune writes OURS=YOURS, Megatron-SWIFT the other way round", "a=b"),
    no_effect(
        "disable_auto_column_mapping", "no guessing of columns", "a format is recognised as a whole; see --columns"
    ),
    translated("strict", "on_bad_record", "stop at a bad record", "False", {"on_bad_record": "drop"}, data.strict),
    no_effect("drop_untrainble_sample", "leave out records without answers", "use --on_bad_record drop"),
    no_effect("download_mode", "download data again", "the Hub's cache is used; delete it to download again", "x"),
    works("streaming", "tokenise while training", "False"),
    no_effect(
        "lazy_tokenize",
        "tokenise while training",
        "records are tokenised once and cached; or use --streaming",
        harmless=("false",),
    ),
    works("overwrite_cache", "tokenise anew", "True"),
    translated(
        "load_from_cache_file",
        "overwrite_cache",
        "use tokenised records again",
        "False",
        {"overwrite_cache": "True"},
        data.from_cache,
    ),
    works("preprocessing_num_workers", "processes that tokenise", "4"),
    alias("dataset_num_proc", "preprocessing_num_workers", "processes that tokenise", "4"),
    no_effect("packing_num_proc", "processes that pack", "packing takes one", "4"),
    works("max_train_samples", "records used at most", "100"),
    works("max_eval_samples", "records held out at most", "10"),
    alias("train_samples", "max_train_samples", "records used at most", "100"),
    works("validation_split_percentage", "share that is held out", "2"),
    translated(
        "split_dataset_ratio",
        "validation_split_percentage",
        "share that is held out",
        "0.02",
        {"validation_split_percentage": "2"},
        data.held_out_share,
    ),
    no_effect("val_dataset_shuffle", "shuffle held-out records", "their order changes nothing", harmless=("false",)),
    *(
        translated(
            name,
            "train_sampling_strategy",
            "shuffle the records",
            "False",
            {"train_sampling_strategy": "sequential"},
            data.shuffled,
        )
        for name in ("dataset_shuffle", "train_dataloader_shuffle", "random_shuffle", "dataloader_shuffle")
    ),
    translated(
        "group_by_length",
        "train_sampling_strategy",
        "batches of similar lengths",
        "True",
        {"train_sampling_strategy": "group_by_length"},
        data.grouped,
    ),
    no_effect("data_sharding", "shuffle within a process's share", "all records are shuffled", harmless=("false",)),
    alias("shuffle_buffer_size", "shuffle_buffer", "documents shuffled together", "1000"),
    no_effect("buffer_size", "records that packing looks at", "packing sees all records", "500"),
    works("data_seed", "seed of the order", "3"),
    # ERNIEKit's mixing of tasks
    *(
        refused(name, does, "records are taken as they are; prepare them so", value)
        for name, does, value in (
            ("example_from_same_task_prob", "share of records of one task", "0.5"),
            ("pseudo_sampling_prob", "share of repeated records", "0.4"),
            ("trigger_data_prob", "share of records with a trigger", "0.4"),
            ("drop_history_with_k", "shorten histories", "True"),
            ("min_shot", "fewest examples in a prompt", "2"),
            ("max_shot", "most examples in a prompt", "8"),
            ("factor", "repetitions", "20"),
            ("one_sample_in_one_seq", "one record a row", "True"),
            ("sft_shift_by_one", "shifted labels", "True"),
            ("sft_replace_ids", "separators as ends of text", "True"),
        )
    ),
    no_effect(
        "sampling_wo_replacement_data_resuming", "where to go on in the data", "a resumed run goes on where it was"
    ),
    no_effect("same_data", "the data of the run before", "a resumed run goes on where it was"),
    no_effect("use_train_part_sharding", "share of each process", "every process reads its own rows"),
    no_effect("text_use_train_part_sharding", "share of each process", "every process reads its own rows"),
    no_effect(
        "resuming_dataset",
        "start of a resumed data set",
        "--resume_from_checkpoint goes on where the run was",
        harmless=("false",),
    ),
    refused("token_balance_loss", "same weight for every record", "every token has the same weight"),
)
