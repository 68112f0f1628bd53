-- One row a node of an admitted path: the path from the root to its leaf, as ranges into the arrays of `trees`.
-- `target`: it is trainable, and this is the first admitted path that holds it. On a later path the same tokens
-- are context: each sampled token is a target at most once.
-- Key: group_id, execution_id, path, depth_start
with final as (
    select
        n.group_id,
        n.execution_id,
        a.path,
        n.node,
        n.call_id,
        n.depth_start,
        n.depth_end - n.depth_start as length,
        n.tree_start,
        n.logprob_start,
        n.sampled,
        n.trainable and a.path = min(a.path) over (partition by n.execution_id, n.node) as target
    from admitted as a
    join leaf_paths as p on p.execution_id = a.execution_id and p.leaf = a.leaf
    join nodes as n on n.execution_id = p.execution_id and n.node = p.node
)

select * from final
