-- One row a node of an execution's prefix tree: a range of one call's own tokens, [depth_start, depth_end)
-- on its path, cut wherever another call leaves it and between context and output. `node` is
-- (call_id << 32) | depth_start; a root has no parent. The tokens lie in `trees` from `tree_start` on, the
-- log-probabilities of a sampled node from `logprob_start` on.
-- Canonical calls are needed (a parent owns token shared_len - 1); `orphan_node` shows those that are not.
-- Key: group_id, execution_id, node
with final as (
    select
        e.group_id,
        e.execution_id,
        n.call_id,
        (n.call_id << 32) | n.depth_start as node,
        (p.call_id << 32) | p.depth_start as parent_node,
        n.depth_start,
        n.depth_end,
        n.logprob_start is not null as sampled,
        n.trainable,
        n.role_rank,
        n.tree_start,
        n.logprob_start
    from tree_nodes as n
    join tree_executions as e on e.x = n.x
    join runs as r on r.x = n.x and r.run = n.run
    left join tree_nodes as p
        on p.x = n.x
        and p.run = case when n.depth_start = r.depth_start then r.parent_run else n.run end
        and p.depth_end = n.depth_start
)

select * from final
