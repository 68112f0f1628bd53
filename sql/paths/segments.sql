-- One row a node of an admitted path: the path from the root to its leaf, as ranges into the arrays of
-- `trees`. `target`: it is trainable, and this is the first admitted path that holds it. On a later path the
-- same tokens are context: each sampled token is a target at most once.
-- Key: group_id, execution_id, path, depth_start
with walked as materialized (
    select a.execution_id, a.path, p.node
    from admitted as a
    join leaf_paths as p on p.execution_id = a.execution_id and p.leaf = a.leaf
),

owned as (
    select execution_id, node, min(path) as path
    from walked
    group by execution_id, node
),

final as (
    select
        n.group_id,
        n.execution_id,
        w.path,
        n.node,
        n.call_id,
        n.depth_start,
        n.depth_end - n.depth_start as length,
        n.tree_start,
        n.logprob_start,
        n.sampled,
        n.trainable and w.path = o.path as target
    from walked as w
    join owned as o on o.execution_id = w.execution_id and o.node = w.node
    join nodes as n on n.execution_id = w.execution_id and n.node = w.node
)

select * from final
