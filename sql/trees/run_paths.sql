-- One row a (leaf, run on its path from the root) pair, the leaf's own run too: the path holds the run's
-- tokens up to depth `upto`, and `trained` trainable ones of it. `leaf_run`: the run that ends with the leaf.
-- Key: x, leaf_run, run
with recursive climbed as (
    select x, run as leaf_run, run, depth_end as upto, trained
    from tree_leaves
    union all
    select r.x, c.leaf_run, r.parent_run, r.depth_start, r.trained_before
    from climbed as c
    join runs as r on r.x = c.x and r.run = c.run
    where r.parent_run is not null
),

final as (
    select x, leaf_run, run, upto, trained
    from climbed
)

select * from final
