"""Images, video and sound, which hftune does not train on."""

from hftune.arguments.names.row import no_effect, refused

_TEXT = "hftune trains on text; remove it"

ROWS = (
    *(
        refused(name, does, _TEXT, value)
        for name, does, value in (
            ("multimodal", "train on images", "True"),
            ("vision_model_name_or_path", "model of images", "m"),
            ("vision_config", "shape of that model", "{}"),
            ("freeze_llm", "freeze the language model", "True"),
            ("text_dataset_path", "text beside images", "d"),
            ("text_dataset_prob", "its weight", "1"),
            ("modality_ratio", "share of images", "1,1"),
            ("image_dtype", "dtype of images", "float32"),
        )
    ),
    *(
        no_effect(name, does, "hftune trains on text", value)
        for name, does, value in (
            ("freeze_vit", "freeze the model of images", "True"),
            ("freeze_aligner", "freeze what joins them", "True"),
            ("language_model_only", "leave images out", "True"),
            ("vit_gradient_checkpointing", "recompute", "True"),
            ("vit_gradient_checkpointing_kwargs", "how", "{}"),
            ("vit_attn_impl", "attention", "sdpa"),
            ("vit_lr", "learning rate", "1e-5"),
            ("vit_lr_ratio", "learning rate", "0.1"),
            ("visual_ld", "learning rate", "0.9"),
            ("aligner_lr", "learning rate", "1e-5"),
            ("vit_second_fwd_batch_size", "batch", "2"),
            ("vit_num_recompute_layers", "layers recomputed", "4"),
            ("balanced_image_preprocess", "balanced work", "True"),
            ("modality_interleave", "order", "acc"),
            ("attn_sep", "separate attention", "True"),
            ("in_channels", "channels", "3"),
            ("in_chans", "channels", "3"),
            ("patch_size", "patch", "14"),
            ("spatial_merge_size", "patches joined", "2"),
            ("spatial_patch_size", "patch", "14"),
            ("spatial_conv_size", "patches joined", "2"),
            ("max_pixels", "largest image", "1003520"),
            ("min_pixels", "smallest image", "3136"),
            ("video_max_pixels", "largest frame", "50176"),
            ("video_min_pixels", "smallest frame", "3136"),
            ("video_fps", "frames a second", "2"),
            ("video_min_frames", "fewest frames", "16"),
            ("video_max_frames", "most frames", "480"),
            ("video_target_frames", "frames", "32"),
            ("video_frames_sample", "which frames", "middle"),
            ("norm_bbox", "boxes", "norm1000"),
            ("im_prefix_length", "tokens before an image", "64"),
            ("image_token_len", "tokens of an image", "64"),
            ("use_pic_id", "number images", "True"),
            ("prompt_dir", "prompts of images", "p"),
            ("serialize_output", "form of processed images", "True"),
            ("variable_resolution", "images of any size", "True"),
            ("render_timestamp", "times in frames", "True"),
            ("adaptive_max_imgtoken_option", "tokens of images", "64,128"),
            ("adaptive_max_imgtoken_rate", "their shares", "0.5,0.5"),
            ("sft_image_rescale", "scale late", "True"),
            ("sft_image_normalize", "normalise late", "True"),
        )
    ),
)
