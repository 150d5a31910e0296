"""What may start the processes of a run, and the options of each."""

from __future__ import annotations

OPTIONS: dict[str, tuple[str, ...]] = {
    "python": (),
    "deepspeed": (
        *("num_gpus", "num_nodes", "hostfile", "include", "exclude", "master_addr", "master_port", "node_rank"),
        *("no_ssh", "no_ssh_check", "force_multi", "ssh_port", "launcher", "launcher_args", "venv_script"),
        *("bind_cores_to_rank", "bind_core_list", "enable_each_rank_log"),
    ),
    "torchrun": (
        *("nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port", "standalone", "max_restarts"),
        *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "log_dir", "redirects", "tee", "local_addr"),
        *("monitor_interval", "role", "numa_binding"),
    ),
    "srun": (
        *("nodes", "gpus_per_node", "nproc_per_node", "master_port", "partition", "account", "qos", "time", "gres"),
        *("gpus", "cpus_per_task", "mem", "mem_per_gpu", "exclusive", "constraint", "nodelist", "exclude"),
        *("reservation", "job_name", "export", "kill_on_bad_exit", "overlap", "cpu_bind", "container_image"),
    ),
}
"""Options of each launcher as a pipeline names them: with `_` where the launcher has `-`."""
