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
    select
        c.*,
        p.depth,
        coalesce(lead(p.depth) over (partition by p.x, p.call_id order by p.depth), c.depth_end)
            as depth_after
    from points as p
    join parted as c on c.x = p.x and c.call_id = p.call_id
),

final as (
    select
        x,
        2 * head as run,
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
        case when depth_end > stop then 2 * call_id + 1 else 2 * head end,
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
        x,
        case when depth_after > stop then 2 * call_id + 1 else 2 * head end,
        call_id,
        role_rank,
        depth,
        depth_after,
        tree_base + depth - depth_start,
        case when depth >= depth_output then logprob_base + depth - depth_output end,
        depth >= depth_output and trainable
    from pieces
)

select * from final
