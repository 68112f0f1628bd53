-- One row a (leaf, node on its path from the root) pair; the leaf is on its own path. The longest of all
-- models (leaves times depth): for reading a tree; admission works on `run_paths`.
-- Key: group_id, execution_id, leaf, node
with final as (
    select
        e.group_id,
        e.execution_id,
        l.leaf,
        (n.call_id << 32) | n.depth_start as node,
        n.depth_start,
        n.depth_end - n.depth_start as length,
        n.logprob_start is not null as sampled,
        n.trainable
    from run_paths as p
    join tree_leaves as l on l.x = p.x and l.run = p.leaf_run
    join tree_nodes as n on n.x = p.x and n.run = p.run and n.depth_end <= p.upto
    join tree_executions as e on e.x = p.x
)

select * from final
