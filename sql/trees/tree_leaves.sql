-- One row a run whose end is a leaf: nothing of the task continues it. Auxiliary calls (titles, probes of a
-- harness) are never trained, so what only they continue is a leaf, and their own ends are none.
-- `leaf` is the id of the node that it ends with.
-- Key: x, run
with recursive alive as (
    select p.x, p.run
    from runs as c
    join runs as p on p.x = c.x and p.run = c.parent_run
    where c.role_rank < 4 and p.role_rank = 4
    union
    select p.x, p.run
    from alive as a
    join runs as c on c.x = a.x and c.run = a.run
    join runs as p on p.x = c.x and p.run = c.parent_run
    where p.role_rank = 4
),

continued as (
    select x, parent_run as run, depth_start as depth_end
    from runs
    where role_rank < 4
    union all
    select r.x, r.parent_run, r.depth_start
    from runs as r
    semi join alive as a on a.x = r.x and a.run = r.run
),

ends as (
    select r.x, r.run, r.last_call, r.depth_end, r.role_rank, r.trained
    from runs as r
    anti join continued as c on c.x = r.x and c.run = r.run and c.depth_end = r.depth_end
    where r.role_rank < 4
),

final as (
    select
        e.x,
        e.run,
        (e.last_call << 32) | n.depth_start as leaf,
        e.depth_end,
        e.role_rank,
        e.trained
    from ends as e
    join tree_nodes as n on n.x = e.x and n.call_id = e.last_call and n.depth_end = e.depth_end
)

select * from final
