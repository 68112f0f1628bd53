-- One row a node of an admitted path: the path from the root to its leaf, as ranges into the arrays of
-- `trees`. `target`: it is trainable, and this is the first admitted path that holds it. On a later path the
-- same tokens are context: each sampled token is a target at most once.
-- Key: group_id, execution_id, path, depth_start
with walked as (
    select
        e.x,
        e.group_id,
        e.execution_id,
        a.path,
        p.run,
        p.upto,
        coalesce(
            max(p.upto) over (
                partition by e.x, p.run order by a.path rows between unbounded preceding and 1 preceding
            ),
            0
        ) as owned_to
    from admitted as a
    join tree_executions as e on e.execution_id = a.execution_id
    join tree_leaves as l on l.x = e.x and l.leaf = a.leaf
    join run_paths as p on p.x = e.x and p.leaf_run = l.run
),

final as (
    select
        w.group_id,
        w.execution_id,
        w.path,
        (n.call_id << 32) | n.depth_start as node,
        n.call_id,
        n.depth_start,
        n.depth_end - n.depth_start as length,
        n.tree_start,
        n.logprob_start,
        n.logprob_start is not null as sampled,
        n.trainable and n.depth_end > w.owned_to as target
    from walked as w
    join tree_nodes as n on n.x = w.x and n.run = w.run and n.depth_end <= w.upto
)

select * from final
