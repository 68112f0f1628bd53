-- One row a node, by numbers: a range of one call's own tokens, [depth_start, depth_end) on its path, cut
-- wherever another call leaves it and between context and output; `nodes` says more. Most calls are cut by
-- none, so only those that are go through a window.
-- Key: x, call_id, depth_start
with cuts as (
    select distinct r.x, r.parent_call_id as call_id, r.depth_start as depth
    from runs as r
    join tree_calls as p on p.x = r.x and p.call_id = r.parent_call_id
    where r.depth_start < p.depth_end and r.depth_start <> p.depth_output
),

cut_calls as (
    select distinct x, call_id from cuts
),

whole as (
    select c.* from tree_calls as c anti join cut_calls as k on k.x = c.x and k.call_id = c.call_id
),

parted as (
    select c.* from tree_calls as c semi join cut_calls as k on k.x = c.x and k.call_id = c.call_id
),

points as (
    select x, call_id, depth from cuts
    union all
    select x, call_id, depth_start from parted
    union all
    select x, call_id, depth_output from parted where depth_output > depth_start and depth_output < depth_end
),

pieces as (
    select x, call_id, depth, lead(depth) over (partition by x, call_id order by depth) as depth_after
    from points
),

final as (
    select
        x,
        run,
        call_id,
        role_rank,
        depth_start,
        depth_output as depth_end,
        tree_base as tree_start,
        null::bigint as logprob_start,
        false as trainable
    from whole
    where depth_output > depth_start
    union all
    select
        x,
        run,
        call_id,
        role_rank,
        depth_output,
        depth_end,
        tree_base + depth_output - depth_start,
        logprob_base,
        trainable
    from whole
    where depth_end > depth_output
    union all
    select
        p.x,
        c.run,
        p.call_id,
        c.role_rank,
        p.depth,
        coalesce(p.depth_after, c.depth_end),
        c.tree_base + p.depth - c.depth_start,
        case when p.depth >= c.depth_output then c.logprob_base + p.depth - c.depth_output end,
        p.depth >= c.depth_output and c.trainable
    from pieces as p
    join parted as c on c.x = p.x and c.call_id = p.call_id
)

select * from final
